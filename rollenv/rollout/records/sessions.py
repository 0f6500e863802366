"""Episodes from a gateway's sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollenv.agents.chat.agent import call_text
from rollenv.agents.chat.replies import ChatToolCall
from rollenv.agents.gateway.messages import as_openai
from rollenv.agents.gateway.session import GatewaySample, GatewaySession
from rollenv.agents.gateway.tree import CallNode
from rollenv.core.errors import UsageError
from rollenv.rollout.types import Task, Trajectory, Turn


def trajectory_of(samples: Sequence[GatewaySample]) -> Trajectory:
    """Convert all samples of a gateway's session to a trajectory.

    Raises:
        UsageError: the session is not finished, or has no reward.
    """
    reward = samples[0].reward
    if reward is None:
        raise UsageError(f"session {samples[0].session} is not finished or has no reward: finish it with one")
    turns = [turn for sample in samples for turn in _turns(sample)]
    if turns:
        turns[-1].reward = reward
    name = samples[0].task or samples[0].session
    return Trajectory(Task(f"gateway:{name}", 0), turns, "terminated", success=samples[0].success)


def _turns(sample: GatewaySample) -> Iterable[Turn]:
    """Yield a turn for each run of sampled tokens, whose prompt is everything before."""
    start = 0
    while start < len(sample.ids):
        end = start + 1
        while end < len(sample.ids) and sample.mask[end] == sample.mask[start]:
            end += 1
        if sample.mask[start]:
            drawn, versions = slice(start, end), tuple(sample.versions[start:end])
            ids, logprobs = tuple(sample.ids[drawn]), tuple(sample.logprobs[drawn])
            prompt, images = tuple(sample.ids[:start]), sample.images
            yield Turn(prompt, ids, logprobs, 0.0, "", "", "", versions[0], versions, prompt_images=images)
        start = end


def session_trajectory(session: GatewaySession) -> Trajectory:
    """Convert a session to a trajectory with texts and messages, and with the turns of :func:`trajectory_of`.

    A session that is not finished is "open"; one without a reward has failed ("reward").
    Calls that an upstream endpoint answered have no tokens.
    """
    turns = [_turn(session, node) for node in session.nodes()]
    task, reward = Task(f"gateway:{session.task or session.id}", 0), session.total_reward
    about = {"session": session.id}
    if turns and reward is not None:
        turns[-1].reward = reward
    played = Trajectory(task, turns, "terminated" if session.over else "open", session.success, record=about)
    if reward is None:
        played.failure, played.error = "reward", f"session {session.id} has no reward"
        played.status = "failed" if session.over else "open"
    return played


def _turn(session: GatewaySession, node: CallNode) -> Turn:
    action, answer = session.action(node), node.answer
    thought = f"<think>{answer.reasoning}</think>" if answer.reasoning else ""
    calls = [call_text(ChatToolCall(call.id, call.name, call.arguments)) for call in answer.calls]
    raw = "\n".join(filter(None, (thought, answer.text, *calls)))
    return Turn(
        action.prompt_ids,
        action.response_ids,
        action.logprobs,
        0.0,
        action.text,
        "\n".join(message.text for message in node.context if message.role != "system"),
        policy_version=action.policy_version,
        versions=action.versions,
        finish=action.finish,
        raw="" if raw == action.text else raw,
        messages=tuple(as_openai(message, data=False) for message in node.context),
        prompt_images=action.images,
    )
