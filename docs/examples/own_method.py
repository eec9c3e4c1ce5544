"""A method of one's own, without a change to the project: policy gradient with the sign of the advantage alone.

In this folder: `tributary train cartpole --environment.import own_method --method.name sign`.
"""

import tensorflow as tf

import tributary_rl as tributary
from shared.methods.actor_critic import ActorCritic
from shared.methods.method import MethodLoss, Samples
from shared.networks import NetworkOutput


class Sign(ActorCritic):
    """An actor-critic whose policy learns only whether an action was better than expected, not by how much."""

    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        """Graph code: the loss over samples, see `Method.sample_loss`."""
        return super().sample_loss(output, samples._replace(advantages=tf.sign(samples.advantages)))


tributary.register_method("sign", Sign, continuous_actions=True)
