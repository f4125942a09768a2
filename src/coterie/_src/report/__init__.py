"""What people look at: tables for the terminal (`terminal`), and a run as one page of HTML (`html`)."""

from coterie._src.report.terminal import (
    accuracy_table,
    as_table,
    cluster_members,
    number,
    plan_table,
    results_table,
    shortened,
)

__all__ = [
    "accuracy_table",
    "as_table",
    "cluster_members",
    "number",
    "plan_table",
    "results_table",
    "shortened",
]
