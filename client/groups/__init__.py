"""Being a member of a consumer group, in the client.

calls        what `Consumer` offers its application of a group
group        what the application must agree to, done in its polls: give up, commit, take over
attendance   tasks beside the application: find the coordinator, join, assign, beat
membership   pure: what the member may ask for, and what each answer means
interest     which topics it reads
assignors, sticky   pure: who gets which partitions, worked out by the member that leads
coordinator  the way to the broker that keeps the group
committed    committing offsets, and asking for them
admin        groups as `Admin` sees them, from outside
"""
