"""Membership in a consumer group, on the client's side; and groups as `Admin` sees them.

consumer_group rebalances as the application sees them, in its polls: revoke, commit, assign
membership_tasks tasks beside the application: find the coordinator, join, assign, heartbeat
membership pure: which requests the member may send, and what each answer means topic_subscription
the topics it reads assignors, sticky pure: the assignment of partitions, which the group's leader
computes coordinator_client requests to the group's coordinator offset_commits committing offsets,
and fetching committed ones admin groups as `Admin` sees them, from outside
"""
