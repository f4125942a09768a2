"""The configuration: what may be set, frozen and validated, every key explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from coterie._src.attacks import PAYLOADS, TARGETS, Attack, Payload, Target
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.problems import AnyProblem, MixedRegression, Synthetic
from coterie._src.experiments.sections import Section
from coterie._src.experiments.starts import STARTS, asks, file_of, is_file
from coterie._src.registry import Registry

ATTACKS: Registry[Payload] = Registry("attack", PAYLOADS, group="coterie.attacks")
ATTACK_TARGETS: Registry[Target] = Registry("target", TARGETS)

MethodName = Annotated[str, AfterValidator(METHODS.resolve)]
AttackName = Annotated[str, AfterValidator(ATTACKS.resolve)]
TargetName = Annotated[str, AfterValidator(ATTACK_TARGETS.resolve)]


def compared_methods() -> list[str]:
    """What a run compares unless told otherwise: the recommended method, the paper's, and the points of reference."""
    return [method.name for method in METHODS if method.compared]


class AlgorithmSection(Section):
    step: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        "auto", description='gamma, the step size, or "auto": 1/(3L), L judged robustly per cluster'
    )
    rounds: int = Field(300, ge=0, description="T, rounds of descent at most")
    tolerance: float = Field(0.0, ge=0, description="stop when no centre moves further than this in a round; 0: never")
    init: str = Field(
        "bernoulli",
        min_length=1,
        description="the first centres: "
        + "; ".join(f"{start.name} ({start.summary})" for start in STARTS)
        + "; or a file of centres (.npy, .csv, .safetensors#NAME)",
    )
    max_byzantine: float = Field(
        0.05,
        ge=0,
        lt=0.5,
        description="bound on alpha: coterie, brifca-filter, -no-regret, robust starts; below the smallest cluster's",
        json_schema_extra={"old_name": "most_byzantine"},
    )
    clusters: Literal["known", "auto"] = Field(
        "known", description="known: as many centres as problem.clusters; auto: coterie and robust starts find out"
    )
    max_clusters: int = Field(
        20, ge=1, description="the most clusters that auto looks for", json_schema_extra={"old_name": "most_clusters"}
    )
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
    kind: AttackName = Field("paper", description="what Byzantine clients send: " + ", ".join(p.name for p in PAYLOADS))
    target: TargetName = Field(
        "own", description="which cluster they claim: " + "; ".join(f"{t.name}: {t.summary}" for t in TARGETS)
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
        """The published strength is called `auto`, so that equal settings have one identity."""
        if not isinstance(raw, dict) or raw.get("scale", "auto") in ("auto", "worst"):
            return raw
        kind = raw.get("kind", "paper")
        known = isinstance(kind, str) and any(kind in (p.name, *p.aliases) for p in ATTACKS)
        if known and ATTACKS[kind].published_scale == raw["scale"]:
            return {**raw, "scale": "auto"}
        return raw

    def attack(self) -> Attack:
        """What Byzantine clients do."""
        scale = None if self.scale == "auto" else self.scale
        return Attack(ATTACKS[self.kind], ATTACK_TARGETS[self.target], scale, self.sleep)


class RunSection(Section):
    methods: list[MethodName] = Field(
        default_factory=compared_methods,
        min_length=1,
        description=f"methods to compare, of {', '.join(METHODS.own_names)}",
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

    problem: AnyProblem = MixedRegression()
    algorithm: AlgorithmSection = AlgorithmSection()
    three_stage: ThreeStageSection = ThreeStageSection()
    attack: AttackSection = AttackSection()
    run: RunSection = Field(default_factory=RunSection)  # other packages may bring methods: not at the import

    @model_validator(mode="after")
    def _enough_samples(self) -> Config:
        if isinstance(self.problem, Synthetic):
            counts = self.problem.sample_counts
            fewest = counts[0] if isinstance(counts, range) else min(counts)
            self.check_samples(fewest, f"problem.samples has {fewest}")
        return self

    def check_samples(self, fewest: int, found: str) -> None:
        """Whether clients with so many samples are enough for the options."""
        needed = 2 * self.algorithm.rounds
        if self.algorithm.clusters == "auto" and fewest < 2:
            raise ValueError(f"algorithm.clusters: auto needs at least 2 samples per client, {found}")
        if self.algorithm.resample and fewest < needed:
            raise ValueError(f"algorithm.resample: needs at least 2*rounds = {needed} samples per client, {found}")

    @model_validator(mode="after")
    def _knows_the_truth(self) -> Config:
        init = self.algorithm.init
        if not self.problem.has_truth:
            if not is_file(init) and STARTS[init].needs_truth:
                raise ValueError(f"algorithm.init: {init} needs the true centres, which a folder does not have")
            if self.three_stage.first == "truth":
                raise ValueError("three_stage.first: truth needs the true labels, which a folder does not have")
            blind = [name for name in self.run.methods if METHODS[name].needs_truth]
            if self.run.methods != compared_methods() and blind:
                raise ValueError(
                    f"run.methods: {', '.join(sorted(blind))} needs the truth, which a folder does not have"
                )
        return self

    @model_validator(mode="after")
    def _fits_the_model(self) -> Config:
        """A network has no curvature and no true parameters."""
        algorithm, network = self.algorithm, not self.problem.has_parameters
        start = None if is_file(algorithm.init) else STARTS[algorithm.init]
        if network:
            if algorithm.step == "auto":
                raise ValueError("algorithm.step: auto needs a curvature, which a network does not have; give a number")
            if start is not None and not start.asks and not start.for_modules:
                raise ValueError(f"algorithm.init: {start.name} is no start for a network; use fresh or spectral")
            if algorithm.resample:
                raise ValueError("algorithm.resample: is for problems whose rounds need no second look at a sample")
        elif start is not None and start.for_modules:
            raise ValueError(f"algorithm.init: {start.name} is a network's start; use spectral, bernoulli or gaussian")
        if self.three_stage.erm == "float32-inverse" and self.problem.loss_of() != "linear":
            raise ValueError("three_stage.erm: float32-inverse is a way to do linear regression only")
        return self

    @property
    def methods(self) -> list[str]:
        """The methods to run, each once; without the truth, those that need none."""
        chosen = list(dict.fromkeys(self.run.methods))
        return [name for name in chosen if self.problem.has_truth or not METHODS[name].needs_truth]

    @property
    def asks_for_start(self) -> bool:
        """Whether the methods begin where the server's questions lead."""
        return asks(self.algorithm.init)


def anchored(config: Config) -> Config:
    """The configuration with whole paths, so that it means the same from any working directory."""
    updates: dict[str, Any] = {"problem": config.problem.anchored()}
    if is_file(config.algorithm.init):
        place = str(Path(config.algorithm.init).resolve())
        updates["algorithm"] = config.algorithm.model_copy(update={"init": place})
    return config.model_copy(update=updates)


def named_files(config: Config) -> tuple[str, ...]:
    """The files and folders that a configuration names."""
    init = config.algorithm.init
    return (*config.problem.files(), *([file_of(init)] if is_file(init) else []))


def default_config() -> Config:
    """The paper's problem with k=5, m=200, n=100, d=100, σ²=0.2, α=β=0.05."""
    return Config()
