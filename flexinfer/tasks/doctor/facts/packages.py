"""How one Python package is judged: there, importable, new enough, and needed or not."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.versions import Release, dotted, older
from flexinfer.tasks.doctor.probe import Probe
from flexinfer.tasks.doctor.report import Finding, Mode, fail, ok, skip, unfit


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package by distribution and module; `modes` need it, `minimum` () is any version.

    `names` are taken from the module when it is tried, since some load their parts late.
    """

    distribution: str
    module: str
    minimum: Release
    modes: frozenset[Mode]
    purpose: str
    names: tuple[str, ...] = ()

    @property
    def fix(self) -> str:
        """The command that installs or updates it."""
        bound = f">={dotted(self.minimum)}" if self.minimum else ""
        return f'pip install -U "{self.distribution}{bound}"'

    def needed(self, mode: Mode) -> bool:
        """Whether `mode` needs it."""
        return mode in self.modes


def is_there(context: Context, package: Package) -> bool:
    """Whether its metadata or its top-level module can be found."""
    top = package.module.partition(".")[0]
    here = context.environment
    return here.version_of(package.distribution) is not None or here.findable(top)


def absent(context: Context, package: Package) -> Finding:
    """Judge a package that is not installed."""
    if package.needed(context.mode):
        why = f"--mode {context.mode} needs it: {package.purpose}"
        return fail("not installed", why, package.fix)
    return skip("not installed", f"optional: {package.purpose}", package.fix)


def version(context: Context, package: Package, probe: Probe) -> str:
    """Return what the imported module calls itself, else what its metadata says."""
    said = probe.facts.get("version")
    return str(said or context.environment.version_of(package.distribution) or "unknown version")


def broken(context: Context, package: Package, found: str, error: str) -> Finding:
    """Judge a package that is installed but does not work."""
    needed = package.needed(context.mode)
    why = f"it is installed but broken; --mode {context.mode} "
    why += "needs it" if needed else "works without it, but other packages may trip over it"
    return unfit(needed, f"{found}: {error}", why, _repair(package, error))


def examine(context: Context, package: Package) -> Finding:
    """Import a package and judge its version."""
    if not is_there(context, package):
        return absent(context, package)
    probe = context.imported(package.module, *package.names)
    found = version(context, package, probe)
    if probe.error is not None:
        return broken(context, package, found, probe.error)
    if older(found, package.minimum):
        why = f"flexinfer needs {dotted(package.minimum)} or newer for {package.purpose}"
        return unfit(package.needed(context.mode), found, why, package.fix)
    return ok(found)


def _repair(package: Package, error: str) -> str:
    """Say what usually mends an import that ends this way."""
    name = package.distribution
    if "undefined symbol" in error:
        return f"it was built for another torch: pip uninstall {name}, then {package.fix}"
    if "No module named" in error:
        return f"a dependency is missing: {package.fix}"
    return f"pip install --force-reinstall --no-deps {name}, or pip uninstall {name}"
