package nsexec

import "testing"

func TestLaunchTrue(t *testing.T) {
	out, o := run(t, newSpec("true"))
	if out != "" || o.ExitCode != 0 || o.Lost {
		t.Fatalf("out %q outcome %+v", out, o)
	}
}
