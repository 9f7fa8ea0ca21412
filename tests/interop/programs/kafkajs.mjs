// node kafkajs.mjs BOOTSTRAP TOPIC: writes three records, and reads them as a member of a group.
import { Kafka, logLevel } from 'kafkajs'

const [bootstrap, topic] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.ERROR })
const producer = kafka.producer()
await producer.connect()
await producer.send({ topic, messages: [0, 1, 2].map((n) => ({ key: 'key', value: `word ${n}` })) })
await producer.disconnect()
const consumer = kafka.consumer({ groupId: topic })
await consumer.connect()
await consumer.subscribe({ topic, fromBeginning: true })
let count = 0
let finish
const all = new Promise((resolve) => { finish = resolve })
await consumer.run({
  eachMessage: async ({ message }) => {
    console.log(message.value.toString())
    if (++count === 3) finish()
  },
})
await all
await consumer.commitOffsets([{ topic, partition: 0, offset: '3' }])
await consumer.disconnect()
