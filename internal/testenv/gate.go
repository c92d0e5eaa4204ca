package testenv

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// SkipMarker begins the text of every legitimate skip. The test runner of
// `make test` fails a run under CI that skips for any other reason.
const SkipMarker = "kernel feature missing: "

// CI says whether this is a run that must prove everything.
func CI() bool {
	v := os.Getenv("CI")
	return v != "" && v != "0" && v != "false"
}

// envNoRoot makes root's run leave out what needs root: make unit.
const envNoRoot = "YOI_TESTENV_NO_ROOT"

// Root is called first by a test that needs root and the private mount
// namespace. Lacking root is a skip at a desk and a failure under CI.
func Root(t testing.TB) {
	t.Helper()
	Privileged(t)
	if !inside() {
		t.Fatal("this test needs the private mount namespace: give the package `func TestMain(m *testing.M) { testenv.Main(m) }`")
	}
}

// Privileged is Root for a test that does without the namespace.
func Privileged(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 || os.Getenv(envNoRoot) != "" {
		Lacking(t, "this test needs root: run it with sudo, or make root-test")
	}
}

// Lacking ends a test that lacks what the machine could have: a skip at a desk, a
// failure under CI, which has everything but what its kernel has not.
func Lacking(t testing.TB, what string) {
	t.Helper()
	if CI() {
		t.Fatal(what)
	}
	t.Skip(what)
}

// Long is called first by a test that make unit leaves out. CI has the time.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() && !CI() {
		t.Skip("this test takes long: run it without -short")
	}
}

// MissingKernelFeature is the only way to skip under CI: it names the feature
// and what showed that it is missing. Call it on the kernel's own answer
// (ENOSYS, a missing /proc file), never on a failure that could be ours.
func MissingKernelFeature(t testing.TB, feature, reason string) {
	t.Helper()
	t.Skipf("%s%s: %s", SkipMarker, feature, reason)
}

// NeedFile is MissingKernelFeature where the kernel has no file that comes with the
// feature.
func NeedFile(t testing.TB, feature, name string) {
	t.Helper()
	if _, err := os.Stat(name); os.IsNotExist(err) {
		MissingKernelFeature(t, feature, "there is no "+name)
	}
}

// NeedLandlock skips on a kernel whose Landlock is older than abi, and returns the
// kernel's. It asks by itself: what the product takes for the kernel's is under test.
func NeedLandlock(t testing.TB, abi int) int {
	t.Helper()
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	got, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP { // not built in, or not switched on
		got = 0
	} else if errno != 0 {
		t.Fatal(errno)
	}
	if int(got) < abi {
		MissingKernelFeature(t, "Landlock ABI "+strconv.Itoa(abi), "the kernel has "+strconv.Itoa(int(got)))
	}
	return int(got)
}

// builtWithout reports whether the kernel says that it was built without an option.
// One that does not tell, proc_config.gz(5), has everything.
func builtWithout(option string) bool {
	f, err := os.Open("/proc/config.gz")
	if err != nil {
		return false
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return false
	}
	config, err := io.ReadAll(z)
	return err == nil && !bytes.Contains(config, []byte("\n"+option+"=")) && bytes.Contains(config, []byte("\nCONFIG_"))
}
