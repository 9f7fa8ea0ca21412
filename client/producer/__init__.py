"""The producer.

producer          `Producer`, what an application calls
raw_record        pure: what a record may be, and how large it is
routes            pure: from a topic and a key to a partition's queue
partitioner       pure: which partition a key belongs to
accumulator       pure: batches, memory, what to send, what to do next
batches           pure: a batch, and the queue of a partition
sequence_numbers  pure: idempotence
sender            the tasks that move batches to the brokers
delivery          what became of records
transaction_manager  pure: the states of a transactional producer
transactions      the requests of its transactions
"""
