"""Many runs: sweeps, studies, tuning, and where they are executed."""
