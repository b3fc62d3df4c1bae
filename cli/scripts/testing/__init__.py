"""`engine test`: test files of scripts, run in workers, and reports of them."""
