"""The consumer; what makes it a member of a group is in `groups`.

consumer             `Consumer`, what an application calls
positions            pure: where it is in each partition, and what was fetched ahead
assigned_partition   pure: one of these partitions
completed_fetch      pure: the records of one answer
delivered_positions  pure: which delivered records the application is done with
fetcher              the tasks that fetch, one for each broker
health               pure: what a consumer reports of itself
"""
