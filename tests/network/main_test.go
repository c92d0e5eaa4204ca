package network

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

const envInside = "YOI_NETWORK_TEST"

// The namespace is entered by the first process, on the thread that starts the
// second: of a running Go program not every thread could be.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 && os.Getenv(envInside) == "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fmt.Fprintln(os.Stderr, "no network namespace:", err)
			os.Exit(1)
		}
		os.Setenv(envInside, "1")
	}
	testenv.Main(m)
}
