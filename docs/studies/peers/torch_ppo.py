"""PPO in one process with the work that the preset `pong` has for an agent step: PyTorch on the CPU, ale-py's vector
environment, the A3C network.

usage: torch_ppo.py SECONDS ENVIRONMENTS THREADS EPOCHS [UNROLL_LENGTH] [AGENT_STEPS_PER_UPDATE]
"""

import sys
import time

import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn
from torch.nn import functional

seconds, *numbers = sys.argv[1:]
environments, threads, epochs, unroll_length, batch = map(int, [*numbers, "32", "256"][:5])
torch.set_num_threads(threads)
vector = AtariVectorEnv("pong", num_envs=environments, num_threads=threads, reward_clipping=True)
actions = int(vector.single_action_space.n)
trunk = nn.Sequential(
    nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2592, 256), nn.ReLU()
).to(memory_format=torch.channels_last)
head = nn.Linear(256, actions + 1)
parameters = [*trunk.parameters(), *head.parameters()]
optimizer = torch.optim.RMSprop(parameters, lr=1e-3, alpha=0.99, eps=1e-5)


def forward(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [N, A] and values [N]."""
    output = head(trunk(images.float().div_(255)))
    return functional.log_softmax(output[:, :actions], -1), output[:, actions]


def log_prob(log_probs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return log_probs.gather(1, chosen[:, None])[:, 0]


images, _ = vector.reset()
started, opened, agent_steps = time.perf_counter(), None, 0
while opened is None or time.perf_counter() - opened < float(seconds):
    rollout = []
    for _ in range(unroll_length):
        seen = torch.from_numpy(images)
        with torch.no_grad():
            log_probs, values = forward(seen)
        chosen = torch.multinomial(log_probs.exp(), 1)[:, 0]
        images, rewards, terminated, truncated, _ = vector.step(chosen.numpy())
        goes_on = torch.from_numpy(~(terminated | truncated)).float()
        rollout.append((seen, chosen, log_prob(log_probs, chosen), values, torch.from_numpy(rewards).float(), goes_on))
    with torch.no_grad():
        following = forward(torch.from_numpy(images))[1]
    advantages, advantage = [], torch.zeros(environments)
    for _, _, _, values, rewards, goes_on in reversed(rollout):
        advantage = rewards + 0.99 * goes_on * (following + 0.95 * advantage) - values
        advantages.append(advantage)
        following = values
    all_images, all_actions, before, values, *_ = (torch.cat(parts) for parts in zip(*rollout, strict=True))
    flat = torch.cat(advantages[::-1])
    returns = flat + values
    scaled = (flat - flat.mean()) / (flat.std() + 1e-8)
    for _ in range(epochs):
        for part in torch.randperm(len(flat)).split(batch):
            log_probs, values = forward(all_images[part])
            ratio = (log_prob(log_probs, all_actions[part]) - before[part]).exp()
            policy = torch.min(ratio * scaled[part], ratio.clamp(0.8, 1.2) * scaled[part]).mean()
            entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
            loss = 0.5 * (returns[part] - values).square().mean() - policy - 0.02 * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    now = time.perf_counter()
    if opened is not None:
        agent_steps += unroll_length * environments
    elif now - started > 4:
        opened = now
rate = agent_steps / (time.perf_counter() - opened)
print(f"torch_ppo agent_steps_per_s {rate:.0f} frames_per_s {4 * rate:.0f}")
