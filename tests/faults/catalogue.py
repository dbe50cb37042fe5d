"""All faults, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults import faults_api, faults_host, faults_others, faults_tables, faults_tools

if TYPE_CHECKING:
    from tests.faults.schedule import Fault

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for module in (faults_api, faults_tools, faults_tables, faults_host, faults_others)
    for fault in module.FAULTS
}
