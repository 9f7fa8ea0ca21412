// node platformatic.mjs BOOTSTRAP TOPIC: writes three records; its consumer finds no usable version.
import { Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [bootstrap, topic] = process.argv.slice(2)
const options = { clientId: 'platformatic', bootstrapBrokers: [bootstrap], retries: 0 }
const producer = new Producer({ ...options, serializers: stringSerializers, autocreateTopics: false })
try {
  await producer.send({
    messages: [0, 1, 2].map((n) => ({ topic, key: 'key', value: `word ${n}` })), acks: -1,
  })
  console.log('produced')
} catch (error) {
  console.log(`producer: ${error.message}`)
}
await producer.close()
const consumer = new Consumer({ ...options, groupId: topic, deserializers: stringDeserializers })
try {
  await consumer.consume({ topics: [topic], mode: 'earliest', autocommit: false })
  console.log('consumes')
} catch (error) {
  console.log(`consumer: ${error.message}`)
}
await consumer.close(true).catch(() => {})
