"""What people may do to schedules and executions. Each operation is one transaction: done as a whole, or not at all."""
