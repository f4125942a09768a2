"""The configuration: what may be set, frozen and validated, every key explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie._src.attacks.payloads import PAPER
from coterie._src.data.synthetic import Samples, draw_labels

Method = Literal[
    "coterie", "brifca-median", "brifca-trimmed", "brifca-geometric", "brifca-krum", "brifca-clipping", "brifca-filter",
    "brifca-no-regret", "ifca", "three-stage", "local", "global", "oracle",
]  # fmt: skip
METHOD_NAMES: tuple[Method, ...] = get_args(Method)
COMPARED: tuple[Method, ...] = (
    "coterie", "brifca-median", "brifca-trimmed", "ifca", "three-stage", "local", "global", "oracle",
)  # fmt: skip
"""What a run compares unless told otherwise: the recommended method, the paper's, and the points of reference."""
NEEDS_TRUTH: tuple[Method, ...] = ("oracle",)
PLAIN = ("paper", "sign-flip", "gaussian", "constant", "garbage", "none")
RANGE = r"^\d+\.\.\d+$"


class Section(BaseModel):
    """One table of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Clustered(Section):
    clusters: int = Field(5, ge=1, description="k, the number of clusters and of centres")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of data, updates and centres")


class Synthetic(Clustered):
    clients: int = Field(200, ge=1, description="m, the number of clients, Byzantine ones included")
    samples: Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=RANGE)] | list[Annotated[int, Field(ge=1)]] = (
        Field(100, description='n_i: one number, a range "20..500" to draw from, or a list with one per client')
    )
    dim: int = Field(100, ge=1, description="d, the dimension of a centre")
    byzantine: float = Field(0.05, ge=0, lt=1, description="alpha, the fraction of Byzantine clients: round(alpha*m)")
    shares: Literal["equal"] | list[Annotated[float, Field(gt=0)]] = Field(
        "equal", description='share of the honest clients per cluster: "equal", or k numbers that add up to 1'
    )

    @model_validator(mode="after")
    def _consistent(self) -> Synthetic:
        draw_labels(self.clients, self.clusters, self.byzantine, None if self.shares == "equal" else self.shares)
        if isinstance(self.samples, list) and len(self.samples) != self.clients:
            raise ValueError(f"samples must hold one number per client ({self.clients}), got {len(self.samples)}")
        if isinstance(self.samples, str) and not (len(self.sample_counts) and self.sample_counts[0]):
            raise ValueError(f'samples must be a range "low..high" with 1 <= low <= high, got "{self.samples}"')
        return self

    @property
    def sample_counts(self) -> range | list[int]:
        """All values that n_i may take."""
        if isinstance(self.samples, str):
            low, high = (int(end) for end in self.samples.split(".."))
            return range(low, high + 1)
        return [self.samples] if isinstance(self.samples, int) else self.samples

    @property
    def sample_rule(self) -> Samples:
        """`samples` as the generators take it."""
        return self.sample_counts if isinstance(self.samples, str) else self.samples


class MixedRegression(Synthetic):
    kind: Literal["mixed-regression"] = Field(
        "mixed-regression",
        description="mixed-regression, gaussian-means, poisson-means, rotated-digits, permuted-digits, or folder (your"
        " own data)",
    )
    noise_variance: float = Field(0.2, ge=0, description="sigma^2, the variance of the additive noise")


class GaussianMeans(Synthetic):
    kind: Literal["gaussian-means"] = Field(description=MixedRegression.model_fields["kind"].description)
    noise_variance: float = Field(0.2, ge=0, description="sigma^2 in every coordinate")


class PoissonMeans(Synthetic):
    kind: Literal["poisson-means"] = Field(description=MixedRegression.model_fields["kind"].description)


class Folder(Clustered):
    kind: Literal["folder"] = Field(description=MixedRegression.model_fields["kind"].description)
    path: str = Field("clients", min_length=1, description="folder with one .csv, .parquet or .npz file per client")
    task: Literal["linear", "logistic", "softmax", "mean"] = Field(
        "linear", description="linear, logistic (target 0/1), softmax (target 0..classes-1), or mean (no target)"
    )
    target: str = Field("y", description="name of the target column (not used by the mean task)")
    columns: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="the feature columns, in this order; empty: all beside the target, as the first file has them"
    )
    offset: list[float] = Field([], description="subtracted from the features, a number for each; empty: nothing")
    scale: list[Annotated[float, Field(gt=0)]] = Field(
        [], description="what they are then divided by, so that all lie about 0 with a deviation of about 1"
    )
    classes: int = Field(2, ge=2, description="number of classes of the softmax task")
    intercept: bool = Field(False, description="add a feature that is always 1")


class Images(Clustered):
    """Clusters that see the same images turned, or under other names; the model is a perceptron."""

    kind: Literal["rotated-digits", "permuted-digits"] = Field(
        description=MixedRegression.model_fields["kind"].description
    )
    clusters: int = Field(4, ge=1, description="k, the number of clusters: of rotations, or of names for the classes")
    path: str = Field(
        "", description="folder with IDX files, as of MNIST (train-images-idx3-ubyte[.gz], ...); empty: small digits"
    )
    clients: int = Field(40, ge=1, description="m, the number of clients, Byzantine ones included")
    samples: int = Field(100, ge=0, description="n_i, images per client; 0: all there are, as evenly as can be")
    concentration: float = Field(
        0.0, ge=0, description="of a Dirichlet split of all images, which ignores samples; small: few classes; 0: alike"
    )
    byzantine: float = Field(0.1, ge=0, lt=1, description="alpha, the fraction of Byzantine clients: round(alpha*m)")
    classes: int = Field(10, ge=2, description="number of classes")
    hidden: int = Field(200, ge=0, description="hidden units of the perceptron; 0: softmax regression")
    shared_layers: int = Field(0, ge=0, description="so many first layers are one for all clusters; the rest are heads")
    local_steps: int = Field(
        10, ge=0, description="tau, steps of SGD that a client makes in a round; 0: it sends its gradient instead"
    )
    local_step: float = Field(0.1, gt=0, description="their size")
    local_batch: int = Field(0, ge=0, description="images of a local step; 0: all of the client's")
    local_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the local steps")

    @model_validator(mode="after")
    def _consistent(self) -> Images:
        draw_labels(self.clients, self.clusters, self.byzantine, None)
        if self.shared_layers > (self.hidden > 0):
            raise ValueError(f"shared_layers must be at most {int(self.hidden > 0)} for this perceptron")
        return self


Problem = Annotated[MixedRegression | GaussianMeans | PoissonMeans | Images | Folder, Field(discriminator="kind")]


class AlgorithmSection(Section):
    step: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        "auto", description='gamma, the step size, or "auto": 1/(3L), L judged robustly per cluster'
    )
    rounds: int = Field(300, ge=0, description="T, rounds of descent at most")
    tolerance: float = Field(0.0, ge=0, description="stop when no centre moves further than this in a round; 0: never")
    init: str = Field(
        "bernoulli",
        min_length=1,
        description="spectral, balls or erm (found from one round of answers), bernoulli or gaussian (random, norm"
        " about 1), fresh (a module's own random start), warm (near the truth), or a file of centres (.npy, .csv,"
        " .safetensors#NAME)",
    )
    most_byzantine: float = Field(
        0.05,
        ge=0,
        lt=0.5,
        description="bound on alpha: coterie, brifca-filter, -no-regret, robust starts; below the smallest cluster's",
    )
    clusters: Literal["known", "auto"] = Field(
        "known", description="known: as many centres as problem.clusters; auto: coterie and robust starts find out"
    )
    most_clusters: int = Field(20, ge=1, description="the most clusters that auto looks for")
    warm: float = Field(0.25, ge=0, description="how far a warm start lies from the truth, in units of Delta")
    trim: float = Field(0.05, ge=0, lt=0.5, description="beta, trimmed from each end of a cluster's replies")
    before: Literal["nothing", "mixing", "bucketing"] = Field(
        "nothing",
        description="before the rule, per cluster: nearest-neighbour mixing, or the means of pairs (bucketing)",
    )
    project: Literal["none", "l2-ball", "box"] = Field("none", description="Theta: none, l2-ball or box around 0")
    radius: float = Field(1.0, gt=0, description="radius of the ball, half the side of the box")
    optimiser: Literal["plain", "momentum", "adam"] = Field(
        "plain", description="what the server makes of the aggregates: plain steps, or with momentum, or Adam"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="of the server's optimiser, if it is momentum or adam")
    quorum: int = Field(1, ge=1, description="a cluster with fewer accepted replies in a round keeps its centre")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that a round asks, drawn anew")
    empty: Literal["keep", "random-client"] = Field(
        "keep", description="a cluster that nobody chose keeps its centre, or follows one random client's gradient"
    )
    resample: bool = Field(False, description="fresh samples in every round (Section 5); needs n_i >= 2*rounds")
    ridge: float = Field(
        0.0, ge=0, description="ridge of the local minimisers (three-stage, local); try 0.1 where n_i is near dim"
    )
    ifca_divisor: Literal["cluster", "all"] = Field(
        "cluster", description="ifca: divide a cluster's sum by its own clients, or by all m (as published)"
    )


class ThreeStageSection(Section):
    iterations: int = Field(100, ge=1, description="iterations of trimmed k-means at most")
    starts: int = Field(10, ge=1, description="trimmed k-means++ starts")
    first: Literal["k-means++", "truth"] = Field(
        "k-means++", description="where the clustering begins: k-means++, or the true labels (as published)"
    )
    erm: Literal["stable", "float32-inverse"] = Field(
        "stable", description="local minimisers: stable, or by an inverse in float32 (as published)"
    )
    project: Literal["same", "unit-sphere"] = Field(
        "same", description="Theta of the third stage: the same as algorithm.project, or unit-sphere (as published)"
    )


class AttackSection(Section):
    kind: Literal[
        "paper", "sign-flip", "gaussian", "constant", "garbage", "none", "ipm", "alie", "disguised", "min-max",
        "min-sum", "mimic", "trimmed-mean", "label-flip", "merge", "cross-mimic", "seed-capture", "phantom",
    ] = Field(
        "paper",
        description="what Byzantine clients send: paper, sign-flip, gaussian, constant, garbage, none (poisoned data),"
        " ipm, alie, disguised, min-max, min-sum, mimic, trimmed-mean, label-flip, merge, cross-mimic, seed-capture,"
        " phantom",
    )  # fmt: skip
    target: Literal["own", "smallest", "emptiest", "random", "hop"] = Field(
        "own", description="which cluster they claim: own (best fit), smallest (all together), emptiest, random, hop"
    )
    scale: Literal["auto", "worst"] | float = Field(
        "auto",
        description="the attack's number (paper: gradient at 3*theta); auto: as published; worst: what moves the rule"
        " most, found anew in every round",
    )
    sleep: int = Field(0, ge=0, description="rounds in which they first answer by their own data")

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, raw: Any) -> Any:
        """3 is what `auto` means for the plain attacks; one name for it, so that equal settings have one identity."""
        if isinstance(raw, dict) and raw.get("scale") == PAPER and raw.get("kind", "paper") in PLAIN:
            return {**raw, "scale": "auto"}
        return raw


class RunSection(Section):
    methods: list[Method] = Field(
        list(COMPARED), min_length=1, description=f"methods to compare, of {', '.join(METHOD_NAMES)}"
    )
    trials: int = Field(10, ge=1, description="independent repetitions: new data, new start")
    seed: int = Field(0, ge=0, description="everything random follows from it")
    workers: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description='processes; "auto": one per core. The numbers do not depend on it'
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="cuda: images on a GPU; a sweep's regressions in batches on a GPU that draws the samples"
    )


class Config(Section):
    """A complete experiment."""

    problem: Problem = MixedRegression()
    algorithm: AlgorithmSection = AlgorithmSection()
    three_stage: ThreeStageSection = ThreeStageSection()
    attack: AttackSection = AttackSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if isinstance(self.problem, Synthetic):
            counts, needed = self.problem.sample_counts, 2 * self.algorithm.rounds
            fewest = counts[0] if isinstance(counts, range) else min(counts)
            if self.algorithm.clusters == "auto" and fewest < 2:
                raise ValueError("algorithm.clusters: auto needs at least 2 samples per client, problem.samples has 1")
            if self.algorithm.resample and fewest < needed:
                raise ValueError(
                    f"algorithm.resample: needs at least 2*rounds = {needed} samples per client, "
                    f"problem.samples has {fewest}"
                )
            return self
        if isinstance(self.problem, Images):
            return self._consistent_images()
        if self.algorithm.init == "warm":
            raise ValueError("algorithm.init: warm needs the true centres, which a folder does not have")
        if self.three_stage.first == "truth":
            raise ValueError("three_stage.first: truth needs the true labels, which a folder does not have")
        if self.run.methods != list(COMPARED) and (blind := set(self.run.methods) & set(NEEDS_TRUTH)):
            raise ValueError(f"run.methods: {', '.join(sorted(blind))} needs the truth, which a folder does not have")
        return self

    def _consistent_images(self) -> Config:
        if self.algorithm.step == "auto":
            raise ValueError("algorithm.step: auto needs a curvature, which a network does not have; give a number")
        if self.algorithm.init in ("bernoulli", "gaussian", "warm"):
            raise ValueError(f"algorithm.init: {self.algorithm.init} is no start for a network; use fresh or spectral")
        if self.algorithm.resample:
            raise ValueError("algorithm.resample: is for problems whose rounds need no second look at a sample")
        return self

    @model_validator(mode="after")
    def _fresh_is_for_networks(self) -> Config:
        if self.algorithm.init == "fresh" and not isinstance(self.problem, Images):
            raise ValueError("algorithm.init: fresh is a network's start; use spectral, bernoulli or gaussian")
        return self

    @model_validator(mode="after")
    def _needs_least_squares(self) -> Config:
        linear = isinstance(self.problem, MixedRegression) or (
            isinstance(self.problem, Folder) and self.problem.task == "linear"
        )
        if self.three_stage.erm == "float32-inverse" and not linear:
            raise ValueError("three_stage.erm: float32-inverse is a way to do linear regression only")
        return self

    @property
    def methods(self) -> list[Method]:
        """The methods to run, each once; without the truth, those that need none."""
        chosen = list(dict.fromkeys(self.run.methods))
        if isinstance(self.problem, Folder):
            chosen = [method for method in chosen if method not in NEEDS_TRUTH]
        return chosen


ROBUST_STARTS = ("spectral", "balls", "erm")
NAMED_STARTS = (*ROBUST_STARTS, "bernoulli", "gaussian", "warm", "fresh")
IMAGE_KINDS = ("rotated-digits", "permuted-digits")
IMAGE_DEFAULTS: dict[str, dict[str, Any]] = {
    "algorithm": {"step": 1.0, "rounds": 50, "init": "fresh", "most_byzantine": 0.1, "trim": 0.1},
    "attack": {"kind": "sign-flip"},
    "run": {
        "methods": ["coterie", "brifca-median", "brifca-trimmed", "ifca", "global", "local", "oracle"],
        "trials": 3,
    },
}
"""What stands for a key that is not given where the model is a network: the paper's problem has other defaults."""

PROBLEMS: dict[str, type[Section]] = {
    "mixed-regression": MixedRegression,
    "gaussian-means": GaussianMeans,
    "poisson-means": PoissonMeans,
    "rotated-digits": Images,
    "permuted-digits": Images,
    "folder": Folder,
}


def anchored(config: Config) -> Config:
    """The configuration with whole paths, so that it means the same from any working directory."""
    updates: dict[str, Section] = {}
    if isinstance(config.problem, Folder | Images) and config.problem.path:
        updates["problem"] = config.problem.model_copy(update={"path": str(Path(config.problem.path).resolve())})
    if config.algorithm.init not in NAMED_STARTS:
        place = str(Path(config.algorithm.init).resolve())
        updates["algorithm"] = config.algorithm.model_copy(update={"init": place})
    return config.model_copy(update=updates)


def named_files(config: Config) -> tuple[str, ...]:
    """The files and folders that a configuration names."""
    folder = (config.problem.path,) if isinstance(config.problem, Folder | Images) and config.problem.path else ()
    init = config.algorithm.init
    return (
        folder
        if init in NAMED_STARTS
        else (*folder, init.partition(".safetensors#")[0] + (".safetensors" if ".safetensors#" in init else ""))
    )


def default_config() -> Config:
    """The paper's problem with k=5, m=200, n=100, d=100, σ²=0.2, α=β=0.05."""
    return Config()
