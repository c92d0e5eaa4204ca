package vm

import (
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
	"yoi.dev/yoi-runtime/tests/internal/vm"
)

// feature is a test of another package that asks for what not every kernel has.
type feature struct{ pkg, test string }

// features are those that this machine's kernel has, whatever the kernel lacks that runs
// the tests themselves.
var features = []feature{{"cow", "TestProjectQuota"}, {"tests/quota", "TestProject"}}

// testsDir is where the machine has their programs.
const testsDir = "/usr/lib/yoi-test"

func (f feature) program() string { return path.Join(testsDir, path.Base(f.pkg)+".test") }

// build puts the test's program into the machine's tree.
func (f feature) build(t *testing.T, module, tree string) {
	t.Helper()
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-buildvcs=false", "-o", filepath.Join(tree, f.program()), "./"+f.pkg)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// testFeatures runs them, with the programs that are installed, and lets none skip.
func testFeatures(t *testing.T, m *vm.Machine) {
	for _, f := range features {
		r := m.Run("env", "CI=true", rig.EnvPrograms+"=/usr/bin", f.program(), "-test.v", "-test.run=^"+f.test+"$")
		for _, fs := range []string{"ext4", "xfs"} {
			if r.Code != 0 || !strings.Contains(r.Stdout, "--- PASS: "+f.test+"/"+fs+" ") || strings.Contains(r.Stdout, "--- SKIP") {
				t.Errorf("%s of %s, %s, ended with %d\n%s%s", f.test, f.pkg, fs, r.Code, r.Stdout, r.Stderr)
			}
		}
	}
}
