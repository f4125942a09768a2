"""`coterie plan`: the paper's theorems for a given federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.app import Overrides, app, output_console


@app.command()
def plan(
    clients: Annotated[int | None, typer.Option(help="m. Default of all: as `coterie config` prints.")] = None,
    clusters: Annotated[int | None, typer.Option(help="k.")] = None,
    byzantine: Annotated[float | None, typer.Option(help="alpha, the Byzantine fraction.")] = None,
    samples: Annotated[int | None, typer.Option(help="n_min, samples per client.")] = None,
    dim: Annotated[int | None, typer.Option(help="d.")] = None,
    trim: Annotated[float | None, typer.Option(help="beta.")] = None,
    config: Annotated[Path | None, typer.Option(help="Take the rest from this TOML file.")] = None,
    changes: Overrides = None,
    c1: Annotated[float, typer.Option(help="The constant of Lemma 1: 64 + 64 in its proof.")] = 128.0,
    bound: Annotated[
        float, typer.Option(help="The constant of the error bounds, which the paper does not name.")
    ] = 1.0,
    delta: Annotated[float, typer.Option(help="The failure probability.")] = 0.1,
    epsilon: Annotated[float, typer.Option(help="How far the contamination stays below 1/2.")] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print what the paper's theorems guarantee for a federation, and whether their conditions hold.

    The paper does not name the constant of its error bounds; it is 1 unless you set it, so the bounds are orders of
    magnitude. The proof of Theorem 1 names all of its constants.
    """
    from coterie._src.experiments import read_config
    from coterie._src.experiments.plan import as_dict
    from coterie._src.experiments.plan import plan as findings
    from coterie._src.report import plan_table
    from coterie._src.theory import Constants

    if not (0 < delta < 1 and 0 < epsilon < 0.5 and c1 >= 0 and bound > 0):
        raise ValueError("plan: needs 0 < delta < 1, 0 < epsilon < 0.5, c1 >= 0 and bound > 0")
    given = {
        "problem.clients": clients, "problem.clusters": clusters, "problem.byzantine": byzantine,
        "problem.samples": samples, "problem.dim": dim, "algorithm.trim": trim,
    }  # fmt: skip
    overrides = [*(changes or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    lines = findings(read_config(config, overrides), Constants(c1=c1, bound=bound, delta=delta, epsilon=epsilon))
    if as_json:
        print(json.dumps(as_dict(lines)))
    else:
        output_console().print(plan_table(lines))
