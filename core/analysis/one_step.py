"""What the all-reduce of a step moves, and between which devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """How gradients are brought together.

    Attributes:
        name: The method's name.
        text: What it does.
        moved_bytes: What all transfers between devices add up to.
        links: Pairs of replicas between which something moves.
        two_way: Whether it moves both ways: there the gradients, back their sum.
    """

    name: str
    text: str
    moved_bytes: int
    links: tuple[tuple[int, int], ...]
    two_way: bool = True


def exchange(path: str, replicas: int, gradient_bytes: int) -> Exchange:
    """Describes a method of all-reduce, as TensorFlow 2.21 has it (``cross_device_ops.py``).

    Args:
        path: As the engine names it; what it does not know counts as reduction to one device.
        replicas: How many take part.
        gradient_bytes: Size of one replica's gradients.
    """
    others = range(1, replicas)
    moved_bytes = 2 * len(others) * gradient_bytes
    if not others:
        return Exchange("Nothing to exchange", "There is one replica; its gradient is the sum.", 0, ())
    if path in ("nccl", "NcclAllReduce", "CollectiveAllReduce"):
        # Every part of the gradient is passed on (replicas - 1) times to be summed, and as often again.
        return Exchange(
            "NCCL ring" if "nccl" in path.lower() else "Collective ring",
            "The gradient is cut into as many parts as there are devices. Each goes round the ring twice,"
            " once to be summed, once to be handed out. No device carries more than the others.",
            moved_bytes,
            tuple((i, (i + 1) % replicas) for i in range(replicas)),
            two_way=False,
        )
    if path in ("hierarchical_copy", "HierarchicalCopyAllReduce"):
        group = max(replicas // 2, 1)
        leaders = range(0, replicas, group)
        inside = ((i, i - i % group) for i in range(replicas) if i % group)
        return Exchange(
            "Hierarchical copy",
            "The devices of a group are summed first, then the groups' sums; the result goes back the same"
            " way.",
            moved_bytes,
            (*inside, *((leader, 0) for leader in leaders if leader)),
        )
    return Exchange(
        "Reduction to one device, then broadcast",
        "Every device sends its gradient to the first, which sums them and sends the sum back to each.",
        moved_bytes,
        tuple((i, 0) for i in others),
    )
