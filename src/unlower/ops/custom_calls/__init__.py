"""Rules of custom calls, by target name; one file for each vendor."""
