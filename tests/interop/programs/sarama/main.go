// sarama VERSION BOOTSTRAP TOPIC: writes three records, and reads them as a member of a group.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/IBM/sarama"
)

type reader struct{ stop context.CancelFunc }

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		fmt.Println(string(message.Value))
		session.MarkMessage(message, "")
		if message.Offset == 2 {
			session.Commit()
			r.stop()
			return nil
		}
	}
	return nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	bootstrap, topic := []string{os.Args[2]}, os.Args[3]
	config := sarama.NewConfig()
	version, err := sarama.ParseKafkaVersion(os.Args[1])
	check(err)
	config.Version = version
	config.ClientID = "sarama"
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	check(err)
	for number := 0; number < 3; number++ {
		value := sarama.StringEncoder(fmt.Sprintf("word %d", number))
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: value})
		check(err)
	}
	check(producer.Close())
	group, err := sarama.NewConsumerGroup(bootstrap, topic, config)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	check(group.Consume(ctx, []string{topic}, reader{stop}))
	check(group.Close())
}
