"""Cases run in processes of their own, so that one that crashes or hangs takes nothing else with it."""
