package cow_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/cow/cowtest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// cases are the file systems and what is possible there.
var cases = []struct {
	kind       string
	mib        int
	strategies []policy.StrategyName
}{
	{"ext4", 128, []policy.StrategyName{policy.StrategyOverlay, policy.StrategyCopy, policy.StrategyReflink}},
	{"xfs", 320, []policy.StrategyName{policy.StrategyOverlay, policy.StrategyReflink, policy.StrategyCopy}},
	{"btrfs", 256, []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyOverlay, policy.StrategyReflink, policy.StrategyCopy}},
}

func TestSuite(t *testing.T) {
	unix.Umask(0o022)
	for _, c := range cases {
		for _, name := range c.strategies {
			t.Run(c.kind+"/"+string(name), func(t *testing.T) {
				cowtest.Suite(t, cow.ByName(name), func(t testing.TB) string { return testenv.FS(t, c.kind, c.mib) })
			})
		}
	}
}

const user = 64999

// TestSuiteAsUser is the same for who has no capability at all: owners are not
// kept, snapshots are deleted file by file, modes get in the way.
func TestSuiteAsUser(t *testing.T) {
	for _, c := range cases {
		for _, name := range c.strategies {
			t.Run(c.kind+"/"+string(name), func(t *testing.T) {
				prepare := func() []string {
					dir := testenv.FS(t, c.kind, c.mib)
					if err := os.Chown(dir, user, user); err != nil {
						t.Fatal(err)
					}
					return []string{"COW_DIR=" + dir}
				}
				testenv.AsUserWith(t, user, prepare, func(t *testing.T) {
					cowtest.Suite(t, cow.ByName(name), func(t testing.TB) string { return os.Getenv("COW_DIR") })
				})
			})
		}
	}
}

// A mask that takes everything must not show in what arrives.
func TestSuiteUnderUmask(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	cowtest.Suite(t, cow.ByName(policy.StrategyReflink), func(t testing.TB) string { return testenv.FS(t, "xfs", 320) })
}
