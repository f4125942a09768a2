"""The configuration of an experiment: all keys, validated and described."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from coterie._src.attacks import PAYLOADS, TARGETS, Attack, Payload, Target
from coterie._src.experiments.methods import METHODS, OWN, Method, check_bound
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
    """The methods that a run compares by default: the recommended one, the paper's, and the baselines."""
    return [method.name for method in METHODS if method.compared]


def _with_own(method: Method) -> list[str]:
    """The name of a method and, where it has one, that of its variant with personal models."""
    has_variant = method.base is None and not method.needs_truth
    return [method.name, method.name + OWN] if has_variant else [method.name]


class AlgorithmSection(Section):
    step: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        "auto", description='gamma, the step size, or "auto": 1/(3L) with a robust estimate of L per cluster'
    )
    rounds: int = Field(300, ge=0, description="T, the largest number of rounds")
    tolerance: float = Field(0.0, ge=0, description="stop when no centre moves farther than this in a round; 0: never")
    init: str = Field(
        "bernoulli",
        min_length=1,
        description="the first centres: "
        + "; ".join(f"{start.name} ({start.summary})" for start in STARTS)
        + "; or a file of centres (.npy, .csv, .safetensors#NAME)",
    )
    max_byzantine: Literal["auto"] | Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.05,
        description="bound on alpha (coterie, brifca-filter, -no-regret, robust starts), below any cluster's share; "
        '"auto": estimated',
        json_schema_extra={"old_name": "most_byzantine"},
    )
    strict: bool = Field(
        False,
        description="stop, and publish nothing, where the replies of more clients stand out than max_byzantine allows; "
        "false: go on with a larger bound",
    )
    coordinates: Literal["auto", "raw", "hessian"] = Field(
        "auto",
        description="coordinates of starts and steps: raw, or hessian (uncorrelated, of equal spread, by the clients' "
        "second moments); auto: hessian for coterie and for starts that ask the clients",
    )
    clusters: Literal["known", "auto"] = Field(
        "known", description="known: k is problem.clusters; auto: coterie and robust starts estimate k"
    )
    max_clusters: int = Field(
        20,
        ge=1,
        description="largest number of clusters for auto",
        json_schema_extra={"old_name": "most_clusters"},
    )
    warm: float = Field(0.25, ge=0, description="distance of a warm start from the true centres, in units of Delta")
    trim: float = Field(0.05, ge=0, lt=0.5, description="beta, the fraction trimmed at each end of a cluster's updates")
    before: Literal["nothing", "mixing", "bucketing"] = Field(
        "nothing",
        description="step before the rule, per cluster: nearest-neighbour mixing, or means of pairs (bucketing)",
    )
    project: Literal["none", "l2-ball", "box"] = Field("none", description="Theta: none, l2-ball or box around 0")
    radius: float = Field(1.0, gt=0, description="radius of the ball, half the side of the box")
    optimiser: Literal["plain", "momentum", "adam"] = Field(
        "plain", description="the server's optimiser: plain steps, momentum or Adam"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the server's optimiser (momentum, adam)")
    quorum: int = Field(1, ge=1, description="a cluster with fewer accepted replies in a round keeps its centre")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of clients in a round, drawn at random")
    empty: Literal["keep", "random-client"] = Field(
        "keep", description="a cluster that no client chose: keep its centre, or use the gradient of one random client"
    )
    resample: bool = Field(False, description="use new samples in every round (Section 5); needs n_i >= 2*rounds")
    ridge: float = Field(
        0.0, ge=0, description="ridge penalty of local minimisers (three-stage, local); try 0.1 where n_i is near dim"
    )
    personalise: Literal["none", "shrink"] = Field(
        "none",
        description="shrink: after every method (but oracle) each client also fits a model of its own, shrunk towards "
        "that of its cluster, shown as NAME+own; none: only where run.methods names NAME+own",
    )
    ifca_divisor: Literal["cluster", "all"] = Field(
        "cluster", description="ifca: divide a cluster's sum by the number of its clients, or of all (as published)"
    )


class ThreeStageSection(Section):
    iterations: int = Field(100, ge=1, description="the largest number of iterations of trimmed k-means")
    starts: int = Field(10, ge=1, description="runs of trimmed k-means from k-means++ seeds")
    first: Literal["k-means++", "truth"] = Field(
        "k-means++", description="start of the clustering: k-means++, or the true labels (as published)"
    )
    erm: Literal["stable", "float32-inverse"] = Field(
        "stable", description="local minimisers: numerically stable, or by an inverse in float32 (as published)"
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
        description="strength of the attack (paper: gradient at scale*theta); auto: as published; worst: that which"
        " moves the rule farthest, found in every round",
    )
    sleep: int = Field(0, ge=0, description="number of first rounds in which they reply honestly on their own data")

    objective: str = Field(
        "auto",
        description="what the adversary maximises, for an attack with several objectives: "
        + "; ".join(f"{p.name}: {', '.join(p.objectives)}" for p in PAYLOADS if p.objectives),
    )

    @model_validator(mode="before")
    @classmethod
    def _normalise_scale(cls, raw: Any) -> Any:
        """Replace the published strength by `auto`, so that equal settings have the same key in a database."""
        if not isinstance(raw, dict) or raw.get("scale", "auto") in ("auto", "worst"):
            return raw
        kind = raw.get("kind", "paper")
        known = isinstance(kind, str) and any(kind in (p.name, *p.aliases) for p in ATTACKS)
        if known and ATTACKS[kind].published_scale == raw["scale"]:
            return {**raw, "scale": "auto"}
        return raw

    def attack(self) -> Attack:
        """The attack of the Byzantine clients."""
        scale = None if self.scale == "auto" else self.scale
        return Attack(ATTACKS[self.kind], ATTACK_TARGETS[self.target], scale, self.sleep, self.objective)


class RunSection(Section):
    methods: list[MethodName] = Field(
        default_factory=compared_methods,
        min_length=1,
        description=f"methods to compare, of {', '.join(METHODS.own_names)}; NAME{OWN} adds a model for every client",
    )
    trials: int = Field(10, ge=1, description="independent repetitions, each with new data and a new start")
    seed: int = Field(0, ge=0, description="seed of all random numbers")
    workers: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description='number of processes; "auto": one per core. Results do not depend on it'
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="cuda: image problems on a GPU; for a sweep of regressions, batches of trials on a GPU"
    )


class Config(Section):
    """A complete experiment."""

    problem: AnyProblem = MixedRegression()
    algorithm: AlgorithmSection = AlgorithmSection()
    three_stage: ThreeStageSection = ThreeStageSection()
    attack: AttackSection = AttackSection()
    run: RunSection = Field(default_factory=RunSection)  # other packages may bring methods: not at the import

    @model_validator(mode="after")
    def _check_sample_counts(self) -> Config:
        if isinstance(self.problem, Synthetic):
            counts = self.problem.sample_counts
            fewest = counts[0] if isinstance(counts, range) else min(counts)
            self.check_samples(fewest, f"problem.samples has {fewest}")
        return self

    def check_samples(self, fewest: int, found: str) -> None:
        """Raise a ValueError if the options need more than `fewest` samples per client; found: ends the message."""
        needed = 2 * self.algorithm.rounds
        if self.algorithm.clusters == "auto" and fewest < 2:
            raise ValueError(
                f"algorithm.clusters: auto needs at least 2 samples per client, {found}; name k: problem.clusters"
            )
        if self.algorithm.resample and fewest < needed:
            raise ValueError(f"algorithm.resample: needs at least 2*rounds = {needed} samples per client, {found}")

    @model_validator(mode="after")
    def _check_attack(self) -> Config:
        self.attack.attack()
        return self

    @model_validator(mode="after")
    def _check_bound(self) -> Config:
        check_bound(self.algorithm, [METHODS[name] for name in self.run.methods])
        return self

    @model_validator(mode="after")
    def _check_truth(self) -> Config:
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
    def _check_model(self) -> Config:
        """Check the options that depend on the model: a network has no curvature and no true parameters."""
        algorithm, network = self.algorithm, not self.problem.has_parameters
        start = None if is_file(algorithm.init) else STARTS[algorithm.init]
        if network:
            if algorithm.step == "auto":
                raise ValueError("algorithm.step: auto needs a curvature, which a network does not have; give a number")
            if start is not None and not start.asks and not start.for_modules:
                raise ValueError(f"algorithm.init: {start.name} is no start for a network; use fresh or spectral")
            if algorithm.resample:
                raise ValueError("algorithm.resample: is not available for networks")
        elif start is not None and start.for_modules:
            raise ValueError(f"algorithm.init: {start.name} is a network's start; use spectral, bernoulli or gaussian")
        if self.three_stage.erm == "float32-inverse" and self.problem.loss_of() != "linear":
            raise ValueError("three_stage.erm: float32-inverse is a way to do linear regression only")
        return self

    @property
    def methods(self) -> list[str]:
        """The methods to run, without repetitions, with those that `algorithm.personalise` adds.

        Where the truth is unknown, methods that need it are left out.
        """
        possible = [name for name in self.run.methods if self.problem.has_truth or not METHODS[name].needs_truth]
        if self.algorithm.personalise == "shrink":
            possible = [variant for name in possible for variant in _with_own(METHODS[name])]
        return list(dict.fromkeys(possible))

    @property
    def asks_for_start(self) -> bool:
        """Whether the server computes the first centres from answers of the clients."""
        return asks(self.algorithm.init)


def anchored(config: Config) -> Config:
    """The configuration with absolute paths, so that it is valid in any working directory."""
    updates: dict[str, Any] = {"problem": config.problem.anchored()}
    if is_file(config.algorithm.init):
        path = str(Path(config.algorithm.init).resolve())
        updates["algorithm"] = config.algorithm.model_copy(update={"init": path})
    return config.model_copy(update=updates)


def named_files(config: Config) -> tuple[str, ...]:
    """The files and folders that a configuration names."""
    init = config.algorithm.init
    return (*config.problem.files(), *([file_of(init)] if is_file(init) else []))


def default_config() -> Config:
    """The paper's problem with k=5, m=200, n=100, d=100, σ²=0.2, α=β=0.05."""
    return Config()
