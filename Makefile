# make demo     restore two short clips with the shipped weights, train for 45 s, and make a page (about two minutes)
# make sample   train on the sample set, print the table, check the gain (minutes on a laptop CPU)
# make quick    the tests that tell most, about a minute on two cores
# make test     all tests but the long ones
# make versions the fast tests with other versions of torch (lab/try_versions.sh; 5 GB each)
# make gpu      on a new GPU: are results right, how fast is it; writes gpu.json (docs/gpu.md)
# make app      a page to try it in a browser, on this machine alone (app.py)
# make lint     linter, formatter, types, shell scripts, spelling
# make faults   the whole fault suite (an hour), and docs/reliability.md
PYTHON ?= python3
# Where torch and torchvision come from instead of pip's own index: https://download.pytorch.org/whl/cpu has no CUDA.
TORCH_INDEX ?=
# requirements-lock.txt installs the versions that were measured.
REQUIREMENTS ?= requirements.txt
VENV := .venv
SAMPLE := options/vrt/000_train_vrt_sample_rgbspike.json

.PHONY: demo sample quick test slow versions gpu app lint faults clean

demo: $(VENV)/.installed
	@$(VENV)/bin/python scripts/demo.py

# The script itself looks whether the set is there, complete and its own: a file that exists would not tell.
sample: $(VENV)/.installed
	@$(VENV)/bin/python scripts/make_sample_data.py
	@./launch_train.sh 1 $(SAMPLE) $(SAMPLE_OPTIONS)
	@$(VENV)/bin/python scripts/compare_runs.py experiments/$(basename $(notdir $(SAMPLE))) --at-least 3

# The steps of a run from its data to its checkpoint, each where it would be seen first; `make test` has all the rest.
QUICK := house/test_layers utils/test_option utils/test_option_files data/test_manifest data/test_preflight \
    data/test_dataset_video_rgbspike data/test_spike_represent data/test_timing models/test_tiling models/test_weights \
    models/test_optim models/test_metrics
QUICK_TESTS := $(QUICK:%=tests/parts/%.py) \
    tests/parts/house/test_documents.py::test_links_to_headings_lead_to_headings \
    tests/parts/house/test_documents.py::test_links_to_files_lead_to_files \
    tests/parts/house/test_documents.py::test_a_page_has_the_same_sections_code_tables_numbers_and_links_in_both_languages \
    tests/faults/test_steps.py::test_nan_on_one_rank_skips_the_step_on_all_ranks \
    tests/faults/test_steps.py::test_nan_in_too_many_steps_stops_all_ranks \
    tests/dist/test_dist.py::test_collectives_give_the_same_on_every_rank \
    tests/dist/test_dist.py::test_an_error_ends_all_ranks_with_one_message_and_one_code \
    tests/stories/test_main_train.py::test_a_run_leaves_log_weights_checkpoints_curves_and_pictures \
    tests/stories/test_main_train.py::test_resume_gives_the_same_weights_as_no_interruption \
    tests/stories/test_main_train.py::test_two_ranks_train_on_different_samples_and_only_rank_0_writes \
    tests/stories/test_main_test.py::test_the_numbers_equal_the_numbers_of_a_restoration_by_hand \
    tests/stories/test_main_test.py::test_two_ranks_share_clips_and_give_the_same_numbers \
    'tests/parts/models/test_network_vrt.py::test_outputs_activations_flows_and_gradients_equal_the_reference[net_deblur_pa2_2f_w8]'

# Bytecode is kept even where PYTHONDONTWRITEBYTECODE is set, as in containers: tests start hundreds of processes, and
# without it each of them compiles the project anew.
# glibc keeps the memory of freed tensors. Else the system would fill it with zeros anew: a third of the time of a test.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= MALLOC_TRIM_THRESHOLD_=1073741824 \
    MALLOC_MMAP_THRESHOLD_=1073741824 $(VENV)/bin/python -m pytest --dist loadscope

quick: $(VENV)/.installed-test
	$(PYTEST) -n 2 $(QUICK_TESTS)

# Files begin in the order of tests/conftest.py, not those with most tests first.
test: $(VENV)/.installed-test
	$(PYTEST) -n 4 --no-loadscope-reorder --durations=15 -m "not slow"

slow: $(VENV)/.installed-test
	$(PYTEST) -n 4 --no-loadscope-reorder --durations=15 -m slow

faults: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.faults.trials

versions:
	PYTHON=$(PYTHON) lab/try_versions.sh

gpu: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -m cuda
	$(VENV)/bin/python lab/gpu.py --out gpu.json

app: $(VENV)/.installed-app
	@$(VENV)/bin/python app.py

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --quiet --check .
	$(VENV)/bin/ty check --quiet --python $(VENV) .
	git ls-files -z '*.sh' .ci/run | xargs -0 $(VENV)/bin/shellcheck --severity=warning
	git ls-files -z | xargs -0 $(VENV)/bin/codespell
	$(VENV)/bin/python lab/make_tried_table.py --check

$(VENV)/.installed: $(REQUIREMENTS)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(VENV)/bin/python -m pip install --quiet torch torchvision --constraint $(REQUIREMENTS) --index-url $(TORCH_INDEX))
	$(VENV)/bin/python -m pip install --quiet -r $(REQUIREMENTS)
	touch $@

$(VENV)/.installed-test: requirements-test.txt $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet -r requirements-test.txt
	touch $@

$(VENV)/.installed-app: requirements-app.txt $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet -r requirements-app.txt
	touch $@

# Results and data stay: whoever made them decides. A $(VENV) that make did not fill stays as well.
clean:
	test ! -e $(VENV)/.installed || rm -rf $(VENV)
	@echo "experiments/ and trainsets/ are left as they are"
