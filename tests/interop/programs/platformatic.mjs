// node platformatic.mjs BOOTSTRAP TOPIC: writes three records, and reads them as a member of a group.
import { Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [bootstrap, topic] = process.argv.slice(2)
const options = { clientId: 'platformatic', bootstrapBrokers: [bootstrap], retries: 0 }
const producer = new Producer({ ...options, serializers: stringSerializers, autocreateTopics: false })
await producer.send({
  messages: [0, 1, 2].map((n) => ({ topic, key: 'key', value: `word ${n}` })), acks: -1,
})
await producer.close()
const consumer = new Consumer({ ...options, groupId: topic, deserializers: stringDeserializers })
const stream = await consumer.consume({ topics: [topic], mode: 'earliest', autocommit: false })
let left = 3
for await (const message of stream) {
  console.log(message.value)
  await message.commit()
  if (--left === 0) break
}
await stream.close()
await consumer.close(true)
