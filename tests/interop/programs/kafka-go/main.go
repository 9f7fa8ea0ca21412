// kafka-go BOOTSTRAP TOPIC: writes three records, and reads them as a member of a group.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	ctx := context.Background()
	writer := &kafka.Writer{
		Addr:         kafka.TCP(bootstrap),
		Topic:        topic,
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 10 * time.Millisecond,
	}
	for number := 0; number < 3; number++ {
		check(writer.WriteMessages(ctx, kafka.Message{Value: []byte(fmt.Sprintf("word %d", number))}))
	}
	check(writer.Close())
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: topic, Topic: topic, MaxWait: 100 * time.Millisecond,
	})
	for number := 0; number < 3; number++ {
		message, err := reader.ReadMessage(ctx)
		check(err)
		fmt.Println(string(message.Value))
	}
	check(reader.Close())
}
