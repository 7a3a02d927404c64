"""The process around the library: threads, exits, forks, Python inside and outside, an environment that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from programs import build, needs_c, run

from lngrad_ascend.sdk import Settings, write_toolkit
from lngrad_ascend.sdk import toolkit as toolkit_module

START = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "acl/acl.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
__attribute__((unused)) static void start(void)
{
    if (aclInit(NULL) != ACL_SUCCESS || aclrtSetDevice(0) != ACL_SUCCESS) {
        printf("%s\\n", aclGetRecentErrMsg());
        exit(9);
    }
}
"""


def output(toolkit: Path, folder: Path, main: str, code: int = 0) -> str:
    """What a program with this text after START prints."""
    done = run(build(toolkit, START + main, folder))
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@needs_c
def test_each_thread_has_its_last_error_for_as_long_as_it_lives(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        #include <pthread.h>
        #include <unistd.h>
        static pthread_barrier_t barrier;
        static void *work(void *id)
        {
            char expected[64];
            for (int round = 0; round < 50; round++) {
                snprintf(expected, sizeof expected, "got %d", 100 + *(int *)id);
                aclrtSetDevice(100 + *(int *)id);
                pthread_barrier_wait(&barrier);
                if (strstr(aclGetRecentErrMsg(), expected) == NULL || aclGetRecentErrMsg() != NULL) exit(1);
                pthread_barrier_wait(&barrier);
            }
            return NULL;
        }
        int main(void)
        {
            pthread_t threads[8];
            int ids[8];
            start();
            pthread_barrier_init(&barrier, NULL, 8);
            for (int i = 0; i < 8; i++) { ids[i] = i; pthread_create(&threads[i], NULL, work, &ids[i]); }
            for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
            puts(aclGetRecentErrMsg() == NULL ? "none here" : "mixed up");
            return 0;
        }
        """,
    )
    assert text == "none here\n"


@needs_c
def test_the_first_call_may_come_from_any_thread_and_threads_come_and_go(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        #include <pthread.h>
        static void *work(void *unused)
        {
            void *address = unused;
            aclInit(NULL);  /* 100002 from the second call on */
            aclrtSetDevice(0);
            if (aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS || aclrtFree(address) != 0) exit(1);
            return NULL;
        }
        int main(void)
        {
            for (int i = 0; i < 200; i++) {
                pthread_t two[2];
                for (int j = 0; j < 2; j++) pthread_create(&two[j], NULL, work, NULL);
                for (int j = 0; j < 2; j++) pthread_join(two[j], NULL);
            }
            puts("done");
            return 0;
        }
        """,
    )
    assert text == "done\n"


@needs_c
@pytest.mark.parametrize("end", ["return 0;", "exit(0);", "aclFinalize(); return 0;", "_exit(0);"])
def test_ends_with_work_in_a_stream(end: str, toolkit: Path, tmp_path: Path) -> None:
    output(
        toolkit,
        tmp_path,
        f"""
        #include <unistd.h>
        int main(void)
        {{
            aclrtStream stream;
            void *address, *other;
            start();
            aclrtCreateStream(&stream);
            aclrtMalloc(&address, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST);
            aclrtMalloc(&other, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST);
            for (int i = 0; i < 50; i++)
                aclrtMemcpyAsync(other, 1 << 20, address, 1 << 20, ACL_MEMCPY_DEVICE_TO_DEVICE, stream);
            {end}
        }}
        """,
    )


@needs_c
def test_calls_while_the_process_ends(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        static void *address;
        static void late(void) { printf("%d\\n", aclrtFree(address)); }
        int main(void)
        {
            atexit(late);  /* runs after the library's own, which comes later */
            start();
            return aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST);
        }
        """,
    )
    assert text == "0\n"


@needs_c
def test_a_forked_child_is_refused_with_a_text(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void)
        {
            start();
            fflush(stdout);
            if (fork() == 0) {
                printf("%d ", aclrtSetDevice(0));
                printf("%s\\n", aclGetRecentErrMsg());
                exit(7);
            }
            int status;
            wait(&status);
            printf("child ended with %d, parent gets %d\\n", WEXITSTATUS(status), aclrtSetDevice(0));
            return 0;
        }
        """,
    )
    assert text.startswith("500001 lngrad: this process was forked from one that had called acl functions")
    assert text.endswith("child ended with 7, parent gets 0\n")


@needs_c
def test_a_child_forked_before_the_first_call_is_as_any_process(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void)
        {
            const pid_t child = fork();
            start();
            if (child == 0) return 0;
            int status;
            wait(&status);
            printf("%d\\n", status);
            return 0;
        }
        """,
    )
    assert text == "0\n"


@needs_c
def test_initialise_again_after_finalize(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        int main(void)
        {
            void *address = NULL;
            for (int i = 0; i < 3; i++) {
                start();
                if (aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS) return 1;
                if (aclFinalize() != ACL_SUCCESS) return 2;
            }
            printf("%d\\n", aclrtFree(address));
            return 0;
        }
        """,
    )
    assert text == "100001\n"


@needs_c
def test_device_memory_cannot_be_followed_and_handles_neither(toolkit: Path, tmp_path: Path) -> None:
    program = """
        #include <setjmp.h>
        #include <signal.h>
        static sigjmp_buf back;
        static void caught(int number) { siglongjmp(back, number); }
        static int faults(const void *address)
        {
            signal(SIGSEGV, caught);
            if (sigsetjmp(back, 1) != 0) return 1;
            return *(const volatile char *)address & 0;
        }
        int main(void)
        {
            void *address;
            aclrtStream stream;
            start();
            if (aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST) != 0 || aclrtCreateStream(&stream) != 0) return 1;
            printf("%d %d\\n", faults(address), faults(stream));
            return 0;
        }
    """
    assert output(toolkit, tmp_path, program) == "1 1\n"


@needs_c
@pytest.mark.parametrize("call", ["aclrtMemcpy(host, 64, %s, 64, ACL_MEMCPY_HOST_TO_HOST)",
                                  "aclrtMemcpy(%s, 64, host, 64, ACL_MEMCPY_HOST_TO_HOST)",
                                  "aclrtMemcpy(%s, 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST)",
                                  "aclrtMemcpy(device, 64, %s, 64, ACL_MEMCPY_HOST_TO_DEVICE)"])  # fmt: skip
def test_a_wild_host_pointer_is_refused(call: str, toolkit: Path, tmp_path: Path) -> None:
    wild = call % "(void *)0x10"
    main = f"""
        int main(void)
        {{
            void *device;
            char host[64] = {{0}};
            start();
            aclrtMalloc(&device, 64, ACL_MEM_MALLOC_HUGE_FIRST);
            (void)host;
            printf("%d ", {wild});
            printf("%s\\n", aclGetRecentErrMsg());
            return 0;
        }}
    """
    text = output(toolkit, tmp_path, main.replace("const char", "char"))
    assert "able bytes of host memory, got the pointer 0x10" in text
    assert text.startswith("100000 ")


@needs_c
def test_inside_a_python_program(toolkit: Path, tmp_path: Path) -> None:
    """An extension module that calls the library is this, with more between."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import ctypes, sys, threading
from lngrad_ascend import acl
library = ctypes.CDLL(sys.argv[1])
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
assert library.aclInit(None) == 0
assert acl.aclrtSetDevice(0) == 0, "one interpreter, one device"
assert library.aclrtSetDevice(7) == 200002
assert b"got 7" in library.aclGetRecentErrMsg()
address = ctypes.c_void_p()
assert library.aclrtMalloc(ctypes.byref(address), 64, 0) == 0
threads = [threading.Thread(target=library.aclrtSynchronizeDevice) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert acl.aclrtFree(address.value) == 0
print("ok")
"""
    )
    library = toolkit / "lib64" / "libascendcl.so"
    done = subprocess.run([sys.executable, program, library], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@needs_c
def test_an_environment_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit_module, "PYTHON", "/no/such/venv/bin/python")
    write_toolkit(tmp_path / "toolkit")
    done = run(build(tmp_path / "toolkit", START + "int main(void) { start(); return 0; }", tmp_path))
    message = "lngrad: the Python environment that wrote this toolkit is gone: /no/such/venv/bin/python. "
    message += "Write the folder again, with `lngrad sdk DIR`\n"
    assert (done.returncode, done.stdout, done.stderr) == (9, message, message)


@needs_c
def test_a_package_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package" / "lngrad_ascend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('half installed')")
    monkeypatch.setattr(toolkit_module, "PACKAGES", (str(package.parent),))
    write_toolkit(tmp_path / "toolkit")
    done = run(build(tmp_path / "toolkit", START + "int main(void) { start(); return 0; }", tmp_path))
    assert (done.returncode, done.stdout) == (9, "lngrad: Python could not start: ImportError: half installed\n")


@needs_c
def test_the_program_sees_what_the_folder_was_written_with(tmp_path: Path) -> None:
    write_toolkit(tmp_path / "toolkit", Settings(soc="Ascend950", mode="compat"))
    text = output(tmp_path / "toolkit", tmp_path, "int main(void) { start(); puts(aclrtGetSocName()); return 0; }")
    assert text == "Ascend950\n"


UNIFIED = """
int main(void)
{
    float host[4] = {1, 2, 3, 4}, copy[4] = {0};
    const int64_t four = 4;
    start();
    aclTensor *tensor = aclCreateTensor(&four, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &four, 1, host);
    printf("%d %d\\n", tensor != NULL, aclrtMemcpy(copy, 16, host, 16, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("%g\\n", copy[3]);
    return 0;
}
"""


@needs_c
def test_host_memory_in_the_place_of_device_memory_is_refused(toolkit: Path, tmp_path: Path) -> None:
    assert output(toolkit, tmp_path, UNIFIED) == "0 100000\n0\n"


@needs_c
def test_host_memory_in_the_place_of_device_memory_with_unified(tmp_path: Path) -> None:
    write_toolkit(tmp_path / "toolkit", Settings(unified=True))
    assert output(tmp_path / "toolkit", tmp_path, UNIFIED) == "1 0\n4\n"


@needs_c
def test_getters_give_arrays_to_free(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        int main(void)
        {
            const int64_t shape[] = {2, 3, 4}, strides[] = {1, 2, 6}, storage[] = {4, 6};
            int64_t *values = NULL;
            uint64_t count = 0;
            start();
            aclTensor *tensor = aclCreateTensor(shape, 3, ACL_FLOAT16, strides, 0, ACL_FORMAT_ND, storage, 2, NULL);
            for (int i = 0; i < 3; i++) {
                aclnnStatus (*const get[])(const aclTensor *, int64_t **, uint64_t *) = {
                    aclGetViewShape, aclGetViewStrides, aclGetStorageShape};
                if (get[i](tensor, &values, &count) != 0) return 1;
                for (uint64_t j = 0; j < count; j++) printf("%ld ", (long)values[j]);
                free(values);
            }
            aclDataType type;
            printf("%d ", aclGetDataType(tensor, &type));
            printf("%d\\n", type);
            printf("%d ", aclDestroyTensor(tensor));
            printf("%d ", aclDestroyTensor(tensor));
            printf("%s\\n", aclGetRecentErrMsg());
            return 0;
        }
        """,
    )
    assert text.splitlines() == [
        "2 3 4 1 2 6 4 6 0 1",
        "0 161002 tensor: expected a living aclTensor, got a destroyed one",
    ]


@needs_c
def test_null_where_a_result_goes(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        int main(void)
        {
            start();
            printf("%d ", aclrtMalloc(NULL, 64, ACL_MEM_MALLOC_HUGE_FIRST));
            printf("%s\\n", aclGetRecentErrMsg());
            printf("%d ", aclGetViewOffset(NULL, NULL));
            printf("%s\\n", aclGetRecentErrMsg());
            return 0;
        }
        """,
    )
    assert text.splitlines() == [
        "100000 devPtr: expected where to write to, got a null pointer",
        "161001 offset: expected where to write to, got a null pointer",
    ]


@needs_c
def test_what_is_not_supported_says_so(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        int main(void)
        {
            start();
            printf("%d ", aclDumpOpTensors("LayerNorm", "one", NULL, 0, 0, NULL));
            printf("%s\\n", aclGetRecentErrMsg());
            return 0;
        }
        """,
    )
    assert text == "200001 aclDumpOpTensors: expected a device, which this host is not\n"


@needs_c
def test_host_memory_that_the_library_allocates(toolkit: Path, tmp_path: Path) -> None:
    text = output(
        toolkit,
        tmp_path,
        """
        int main(void)
        {
            void *host, *device;
            aclrtStream stream;
            start();
            if (aclrtMallocHost(&host, 64) != 0 || aclrtMalloc(&device, 64, ACL_MEM_MALLOC_HUGE_FIRST) != 0) return 1;
            if (aclrtCreateStream(&stream) != 0) return 2;
            memset(host, 7, 64);
            if (aclrtMemcpyAsync(device, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream) != 0) return 3;
            if (aclrtSynchronizeStream(stream) != 0) return 4;
            memset(host, 0, 64);
            if (aclrtMemcpyAsync(host, 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream) != 0) return 5;
            if (aclrtSynchronizeStream(stream) != 0) return 6;
            printf("%d ", ((char *)host)[63]);
            printf("%d ", aclrtFreeHost(host));
            printf("%d\\n", aclrtFreeHost(host));
            return 0;
        }
        """,
    )
    assert text == "7 0 100000\n"


@needs_c
def test_inside_a_program_with_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit_module, "VERSION", "2.7")
    write_toolkit(tmp_path / "toolkit")
    library = tmp_path / "toolkit" / "lib64" / "libascendcl.so"
    program = "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).aclInit(None) == 500001; assert 'lngrad' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith(f"lngrad: this program contains Python {sys.version[:4]}")
    assert done.stderr.endswith("the toolkit is of Python 2.7. Write the folder with the program's Python\n")


@needs_c
def test_a_python_without_a_shared_library(static_toolkit: Path, tmp_path: Path) -> None:
    text = output(static_toolkit, tmp_path, "int main(void) { start(); return 0; }", code=9)
    assert text.startswith(f"lngrad: {sys.executable} has no shared library (libpython3.")
    assert text.endswith("or run the source with `lngrad sdk DIR --run`, which needs none\n")
