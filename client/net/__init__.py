"""The way to the brokers, for all clients; brokers use `network`, `channel` and `blocking_channel`.

cluster           what is known of the cluster, and the way to each broker
metadata          pure: brokers, topics and leaders
connection_pool   at most one connection for each broker and purpose
channel           one connection: requests and answers, many at once
blocking_channel  the same on a blocking socket, one at a time
network           sockets
servers           pure: addresses as people write them
controller        requests that only the controller serves
list_offsets      LIST_OFFSETS of many partitions, each asked of its leader
"""
