"""Being a member of a consumer group, in the client; and groups as `Admin` sees them.

consumer_group      rebalances as the application sees them, in its polls: revoke, commit, assign
membership_tasks    tasks beside the application: find the coordinator, join, assign, beat
membership          pure: what the member may ask for, and what each answer means
topic_subscription  which topics it reads
assignors, sticky   pure: who gets which partitions, worked out by the member that leads
coordinator_client  the way to the broker that keeps the group
offset_commits      committing offsets, and asking for them
admin               groups as `Admin` sees them, from outside
"""
