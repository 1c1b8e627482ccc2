"""What a run is: which devices, which data, which model, how it is trained.

A `RunConfig` is frozen and validated, goes to JSON and comes back equal. Whether the devices it names
exist is the engine's to say; everything that can be known without TensorFlow is checked here.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from core.errors import ConfigError
from core.validation import in_words
from core.words import plural, shown

Strategy = Literal["single", "mirrored", "tpu"]
DeviceType = Literal["CPU", "GPU"]
CrossDeviceOps = Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"]
Dataset = Literal["reuters", "synthetic"]
Optimizer = Literal["nadam", "adam", "sgd"]
Monitor = Literal["val_loss", "val_sparse_categorical_accuracy"]

DATASET_NAMES: dict[Dataset, str] = {"reuters": "Reuters", "synthetic": "synthetic"}
"""What people call the datasets' newswires."""

OPTIMIZER_NAMES: dict[Optimizer, str] = {"nadam": "Nadam", "adam": "Adam", "sgd": "SGD"}
"""The optimizers' classes in Keras, and what people call them."""

TPU_REPLICAS = 8
"""Cores of the usual TPU host. A batch that 8 share evenly suits the smaller ones' 1 or 4 too."""

LOCAL_TPU = "local"
"""Address of a TPU in the machine itself, as TensorFlow's TPUClusterResolver has it."""

MAX_THREADS = 256
"""Largest thread pool that may be asked for."""

MAX_LOGICAL_DEVICES = 8
"""Into how many logical devices one physical device may be split."""

MOST_STEPS_PER_EXECUTION = 64
"""Training steps that one call of the compiled function may take."""

MODEL_LIMITS = {"filters": 1_024, "kernels": 100}
"""Most filters of a convolution, and most words that it looks at."""

DEFAULT_LEARNING_RATE: dict[Optimizer, float] = {"nadam": 0.001, "adam": 0.001, "sgd": 0.01}
"""What Keras 3.15 uses when no learning rate is given (``keras.optimizers``)."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DeviceLayout(_Frozen):
    """Which devices a run sees, how each is split, and the strategy that uses them."""

    strategy: Strategy = "mirrored"
    device_type: DeviceType = "CPU"
    visible_devices: tuple[int, ...] = (0,)
    """Indices of the physical devices of `device_type` that the run may see."""
    logical_devices: int = Field(default=2, ge=1, le=MAX_LOGICAL_DEVICES)
    """Into how many logical devices each visible device is split."""
    memory_limit_mb: int | None = Field(default=None, ge=64, le=1_048_576)
    """Memory of each logical GPU in MiB, as TensorFlow's allocator counts it; None: no limit."""
    memory_growth: bool = False
    """Let every visible GPU's memory grow on demand instead of taking it all at once."""
    cross_device_ops: CrossDeviceOps = "auto"
    tpu: str = Field(default=LOCAL_TPU, max_length=255)
    """For the strategy "tpu", which ignores the settings of CPUs and GPUs: ``local``, name or address."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.strategy == "tpu":
            if not self.tpu.strip():
                raise ConfigError(
                    "The TPU has neither name nor address.",
                    'Give "local" on a TPU VM, else its name or an address such as grpc://10.0.0.2:8470.',
                    "layout.tpu",
                )
            return self
        chosen = list(self.visible_devices)
        if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0:
            raise ConfigError(
                f"Visible devices {shown(chosen)} must be one or more different indices from 0 on.",
                "Name at least one physical device, and each once.",
                "layout.visible_devices",
            )
        if self.device_type == "CPU" and (self.memory_limit_mb is not None or self.memory_growth):
            raise ConfigError(
                "Memory limits and memory growth exist for GPUs only.",
                "Leave both off for a CPU.",
                "layout.memory_growth" if self.memory_growth else "layout.memory_limit_mb",
            )
        if self.memory_growth and self.memory_limit_mb is not None:
            raise ConfigError(
                f"Memory growth and a memory limit of {self.memory_limit_mb} MiB exclude each other.",
                "TensorFlow accepts one of the two for a GPU: turn one off.",
                "layout.memory_growth",
            )
        if self.memory_growth and self.logical_devices > 1:
            raise ConfigError(
                f"Memory growth and a split into {self.logical_devices} logical GPUs exclude each other.",
                "Turn memory growth off, or keep each GPU whole.",
                "layout.memory_growth",
            )
        if self.device_type == "GPU" and self.logical_devices > 1 and self.memory_limit_mb is None:
            raise ConfigError(
                f"A GPU split into {self.logical_devices} logical devices needs a memory limit for each.",
                "Set the memory limit to what each part may use, for example 2048 MiB.",
                "layout.memory_limit_mb",
            )
        if self.device_type == "CPU" and self.cross_device_ops == "nccl":
            raise ConfigError(
                "NCCL reduces between GPUs only; TensorFlow has no NCCL kernel for CPUs.",
                "Choose automatic, hierarchical copy or reduction to one device.",
                "layout.cross_device_ops",
            )
        return self

    @property
    def replicas(self) -> int:
        """Copies of the model that train in sync: one per logical device, or one without a strategy.

        How many cores a TPU has is known when it answers; until then it counts as `TPU_REPLICAS`.
        """
        return {"single": 1, "mirrored": self.available, "tpu": TPU_REPLICAS}[self.strategy]

    @property
    def available(self) -> int:
        """Logical devices that the layout makes, used or not."""
        return len(self.visible_devices) * self.logical_devices

    @property
    def device_names(self) -> list[str]:
        """The logical devices that replicas run on, as TensorFlow names them (``/CPU:0``)."""
        kind = "TPU" if self.strategy == "tpu" else self.device_type
        return [f"/{kind}:{i}" for i in range(self.replicas)]


class DataConfig(_Frozen):
    """Which dataset, and how long its sequences are made."""

    dataset: Dataset = "reuters"
    max_len: int = Field(default=300, ge=1, le=5_000)
    """Word ids a sequence is padded or cut to."""


class ModelConfig(_Frozen):
    """The chapter's network, Embedding → (Conv1D → MaxPooling1D) × 2 → Flatten → Dense, and its optimizer."""

    embedding_size: int = Field(default=7, ge=1, le=512)
    filters: tuple[int, int] = (64, 32)
    kernels: tuple[int, int] = (5, 3)
    """Words each convolution looks at."""
    pool: int = Field(default=2, ge=1, le=100)
    dropout: float = Field(default=0.0, ge=0.0, le=0.9)
    """Share of the flattened features dropped in training; 0 leaves the layer out."""
    optimizer: Optimizer = "nadam"
    from_logits: bool = False
    """Experiment: tell the loss that the softmax's probabilities are logits, as the chapter's script does."""

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        for name, values in (("filters", self.filters), ("kernels", self.kernels)):
            most = MODEL_LIMITS[name]
            for value in values:
                if not 1 <= value <= most:
                    raise ConfigError(
                        f"{name.capitalize()} {shown(list(values))} must each be from 1 to {most:,}.",
                        f"Change {shown(value)} to a number in that range.",
                        f"model.{name}",
                    )
        return self

    def lengths(self, max_len: int) -> list[int]:
        """Sequence length after each convolution and pooling.

        Args:
            max_len: Length of the input sequences.

        Returns:
            Four lengths; one below 1 means that nothing is left to convolve or pool.
        """
        lengths: list[int] = []
        length = max_len
        for kernel in self.kernels:
            length = length - kernel + 1
            lengths.append(length)
            length //= self.pool
            lengths.append(length)
        return lengths


class TrainingConfig(_Frozen):
    """How the model is trained."""

    epochs: int = Field(default=10, ge=1, le=10_000)
    batch_size: int = Field(default=32, ge=1, le=65_536)
    """Global batch size as asked for; see `RunConfig.global_batch_size`."""
    learning_rate: float | None = Field(default=None, gt=0, le=100)
    """None takes Keras's default for the optimizer."""
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    patience: int | None = Field(default=None, ge=1, le=10_000)
    """Epochs without improvement of `monitor` after which training stops early; None: never."""
    monitor: Monitor = "val_loss"
    restore_best: bool = True
    """After an early stop, the code to take home goes back to the weights of the best epoch.

    A run keeps the last ones, and those of its lowest validation loss.
    """
    deterministic: bool = False
    """Make TensorFlow's operations reproducible bit by bit, at some cost in speed."""


class ExecutionConfig(_Frozen):
    """How TensorFlow is driven; None leaves the choice to the engine, which knows the machine."""

    steps_per_execution: int | None = Field(default=None, ge=1, le=MOST_STEPS_PER_EXECUTION)
    """Training steps inside one call of the compiled function."""
    intra_op_threads: int | None = Field(default=None, ge=0, le=MAX_THREADS)
    """Threads that share one operation; 0 is TensorFlow's own choice."""
    inter_op_threads: int | None = Field(default=None, ge=0, le=MAX_THREADS)
    """Operations that run side by side; 0 is TensorFlow's own choice."""
    jit_compile: bool = False
    """Compile the step with XLA."""


class RunConfig(_Frozen):
    """Everything that defines a run."""

    layout: DeviceLayout = DeviceLayout()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    execution: ExecutionConfig = ExecutionConfig()

    @model_validator(mode="after")
    def _model_fits_length(self) -> Self:
        lengths = self.model.lengths(self.data.max_len)
        if min(lengths) < 1:
            chain = " → ".join(str(max(length, 0)) for length in [self.data.max_len, *lengths])
            raise ConfigError(
                f"Sequences of {plural(self.data.max_len, 'word')} are too short for kernels"
                f" {self.model.kernels[0]} and {self.model.kernels[1]} with pooling by {self.model.pool}:"
                f" the length goes {chain}.",
                "Use longer sequences, smaller kernels or less pooling.",
                "model.kernels",
            )
        return self

    @model_validator(mode="after")
    def _execution_fits_layout(self) -> Self:
        layout, steps = self.layout, self.execution.steps_per_execution or 1
        replicas = layout.replicas
        if self.execution.jit_compile and replicas > 1:
            raise ConfigError(
                f"XLA cannot compile the step of {replicas} replicas (TensorFlow 2.21).",
                "Turn it off; a TPU compiles with XLA by itself."
                if layout.strategy == "tpu"
                else "Turn it off, or train on a single device.",
                "execution.jit_compile",
            )
        reduces_with_nccl = layout.device_type == "GPU" and layout.cross_device_ops in ("auto", "nccl")
        if steps > 1 and layout.strategy == "mirrored" and replicas > 1 and reduces_with_nccl:
            raise ConfigError(
                f"{steps} steps per execution are not safe with the default cross-device ops of several GPUs:"
                " Keras 3.15's own loop fails with them, and ours has not run on GPUs.",
                "Take 1 step, or choose hierarchical copy or reduction to one device as cross-device ops.",
                "execution.steps_per_execution",
            )
        return self

    def on(self, layout: DeviceLayout) -> RunConfig:
        """The same run on other devices, with the same global batch.

        Raises:
            ConfigError: The layout's replicas cannot share the global batch evenly, or it does not go with
                the run's execution.
        """
        size = self.global_batch_size
        if size % layout.replicas:
            raise ConfigError(
                f"{layout.replicas} replicas cannot share the run's global batch of {size} evenly.",
                f"Choose a number of replicas that divides {size}.",
                "layout.logical_devices",
            )
        values = self.model_dump(mode="json") | {"layout": layout.model_dump(mode="json")}
        values["training"]["batch_size"] = size
        return parse_config(values)

    @property
    def global_batch_size(self) -> int:
        """The batch size used: the one asked for, rounded up to what the replicas share evenly."""
        replicas = self.layout.replicas
        return math.ceil(self.training.batch_size / replicas) * replicas

    @property
    def per_replica_batch_size(self) -> int:
        """Rows of a global batch that each replica gets."""
        return self.global_batch_size // self.layout.replicas

    @property
    def learning_rate(self) -> float:
        """The learning rate used, Keras's default where none was given."""
        return self.training.learning_rate or DEFAULT_LEARNING_RATE[self.model.optimizer]

    def steps(self, examples: int) -> int:
        """Batches that `examples` rows make, the last, partial one included."""
        return math.ceil(examples / self.global_batch_size)


def parse_config(values: dict[str, Any]) -> RunConfig:
    """Builds a `RunConfig` from plain values, such as a form's or a JSON file's.

    Args:
        values: Nested settings by name; what is missing takes its default.

    Raises:
        ConfigError: A setting is unknown, of the wrong type, or cannot work with the others.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise in_words(error.errors()[0], RunConfig) from None
