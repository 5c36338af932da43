# make sample   train on the sample set and print the table (minutes on a laptop CPU)
# make test     all tests
# make lint     ruff
# make faults   the whole fault suite (an hour), and docs/reliability.md
PYTHON ?= python3
VENV := .venv
SAMPLE := options/vrt/000_train_vrt_sample_rgbspike.json

.PHONY: sample test lint faults clean

# The script itself looks whether the set is there, complete and its own: a file that exists would not tell.
sample: $(VENV)/.installed
	@$(VENV)/bin/python scripts/make_sample_data.py
	@./launch_train.sh 1 $(SAMPLE)

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 3 --dist loadscope --durations=15

faults: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.faults.trials

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

$(VENV)/.installed: requirements.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -r requirements.txt
	touch $@

$(VENV)/.installed-test: requirements-test.txt $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet -r requirements-test.txt
	touch $@

clean:
	rm -rf $(VENV) experiments trainsets/sample
