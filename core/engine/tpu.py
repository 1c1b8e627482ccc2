"""Finds a TPU and makes the strategy that trains on it."""

from __future__ import annotations

from concurrent.futures import Future, wait
from threading import Thread

import tensorflow as tf

from core.config import LOCAL_TPU
from core.errors import UnknownDevice

_CONNECT_S = 8.0
"""An address where nobody listens keeps TensorFlow waiting for more than a minute (2.21)."""
_HINT = (
    'On a TPU VM the address is "local"; elsewhere give grpc://HOST:8470, or the TPU\'s name on Google Cloud.'
    " Without a TPU choose a single device or MirroredStrategy."
)


def connect(address: str) -> tf.distribute.TPUStrategy:
    """Connects this process to a TPU and makes it ready.

    Args:
        address: ``local`` on a TPU VM, a ``grpc://`` address, or a name on Google Cloud.

    Raises:
        UnknownDevice: There is no TPU, or it did not answer in time. TensorFlow cannot be made to give up,
            so the thread that waits for it is left behind and ends with the process.
    """
    found: Future[tf.distribute.cluster_resolver.TPUClusterResolver] = Future()
    Thread(target=_find, args=(address, found), name="tpu", daemon=True).start()
    if not wait([found], timeout=_CONNECT_S).done:
        raise _unknown(address, f"nothing answered there within {_CONNECT_S:g} s")
    try:
        resolver = found.result()
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.NotFoundError:
        raise _unknown(address, "TensorFlow finds no TPU in it") from None
    except OSError as error:
        raise _unknown(address, f"its name could not be looked up ({error})") from error
    except Exception as error:
        # The resolver passes on whatever its HTTP client raises.
        first = str(error).strip().splitlines() or [""]
        raise _unknown(address, f"{type(error).__name__}: {first[0][:200]}") from error
    return tf.distribute.TPUStrategy(resolver)


def _find(address: str, found: Future[tf.distribute.cluster_resolver.TPUClusterResolver]) -> None:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        found.set_result(resolver)
    except Exception as error:  # noqa: BLE001 - goes on to the thread that waits
        found.set_exception(error)


def _unknown(address: str, reason: str) -> UnknownDevice:
    where = "This machine has no TPU" if address == LOCAL_TPU else f"There is no TPU at {address!r}"
    return UnknownDevice(f"{where}: {reason}.", _HINT, "layout.tpu")
