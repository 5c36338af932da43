"""main_test_vrt.py, and then the most memory that the process had, in GB.

    peak_worker.py ARGUMENTS OF main_test_vrt.py
"""

import json
import sys

import main_test_vrt
from utils.dist import process
from utils.run.measure import peak_memory_gb

if __name__ == "__main__":
    code = main_test_vrt.main(sys.argv[1:])
    print(json.dumps({"peak_gb": peak_memory_gb()}), flush=True)
    process.end(code)
