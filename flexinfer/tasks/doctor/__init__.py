"""What works on this machine, what does not, why, and what to do about it.

The way in is `flexinfer.tasks.doctor.run.run_doctor(DoctorConfig) -> DoctorReport`; `DoctorConfig`
and `DoctorReport` live in `report`, `list_checks()` in `registry`. Nothing here imports torch: what
could be missing, broken or crash is tried in a process of its own (`probes/`).
"""
