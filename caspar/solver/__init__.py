"""The solver: problem checks, plan, normal equations, Levenberg-Marquardt, result."""
