"""A run over processes and nodes: the only room that knows Ray, beside the bench of one learner."""
