package host

import (
	"os"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestMain(m *testing.M) {
	Stage()
	testenv.Main(m)
}

// TestHost: commands, users, units and the journal work, files outlive a loss of
// power, and nothing of this machine's can be changed.
func TestHost(t *testing.T) {
	h := New(t)
	if out := h.OK("sh", "-c", "cat /proc/1/comm; hostname; id -un; echo $HOME"); out != "systemd\nhost\nroot\n/root\n" {
		t.Errorf("%q", out)
	}
	if out := h.OK("echo", "$HOME ${HOME} $$ 100% %n", "a  b"); out != "$HOME ${HOME} $$ 100% %n a  b\n" {
		t.Errorf("%q", out)
	}
	if r := h.Run("sh", "-c", "echo out; echo err >&2; exit 7"); r.Code != 7 || r.Stdout != "out\n" || r.Stderr != "err\n" {
		t.Errorf("%+v", r)
	}
	if r := h.RunAs("nobody", "id", "-un"); r.Stdout != "nobody\n" {
		t.Errorf("%+v", r)
	}
	h.Write("/etc/systemd/system/story.service", "[Service]\nType=oneshot\nExecStart=echo once upon a time\n", 0o644)
	h.OK("systemctl", "daemon-reload")
	h.OK("systemctl", "start", "story")
	h.OK("journalctl", "--sync")
	if out := h.OK("journalctl", "-u", "story", "-o", "cat"); !strings.Contains(out, "once upon a time\n") {
		t.Errorf("the journal says %q", out)
	}
	h.Write("/var/lib/mark", "here", 0o600)
	h.Write("/usr/share/mark", "here", 0o600)
	h.Kill()
	h.Boot()
	for _, f := range []string{"/var/lib/mark", "/usr/share/mark", "/etc/systemd/system/story.service"} {
		if b, err := os.ReadFile(h.Path(f)); err != nil || len(b) == 0 {
			t.Errorf("after the loss of power %s: %q %v", f, b, err)
		}
		if _, err := os.Lstat(f); err == nil {
			t.Errorf("%s is on this machine", f)
		}
	}
}
