package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const canary = "canary-7f3a9c"

func value(t *testing.T, s string) *Value {
	t.Helper()
	v, err := Read(strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Wipe)
	return v
}

func TestAValueIsNeverShown(t *testing.T) {
	v := value(t, canary)
	set := Set{{policy.Secret{Handle: "token", As: policy.SecretEnv}, v}}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("shown", "value", v, "set", set)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("shown", "value", v, "set", set)
	shown := log.String()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown += fmt.Sprintf(format+format, v, set)
	}
	if _, err := json.Marshal(set); err == nil {
		t.Error("a set with values was encoded")
	}
	hexed := fmt.Sprintf("%x", canary)
	if strings.Contains(shown, canary) || strings.Contains(shown, hexed) || strings.Contains(shown, fmt.Sprint([]byte(canary))[1:20]) {
		t.Errorf("shown: %s", shown)
	}
}

func TestWipe(t *testing.T) {
	v := value(t, canary)
	v.TrimNewline()
	if string(v.Bytes()) != canary {
		t.Fatal("the value is not what was read")
	}
	v.Wipe()
	v.Wipe()
	if len(v.Bytes()) != 0 {
		t.Error("something is left")
	}
	n := value(t, "a\n\n")
	n.TrimNewline()
	if string(n.Bytes()) != "a\n" {
		t.Errorf("%q", n.Bytes())
	}
}

func TestReadIsBounded(t *testing.T) {
	if v := value(t, strings.Repeat("x", policy.MaxSecretBytes)); len(v.Bytes()) != policy.MaxSecretBytes {
		t.Error("the largest value is not whole")
	}
	if _, err := Read(strings.NewReader(strings.Repeat("x", policy.MaxSecretBytes+1))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

// The kernel says of the mapping what it does with it (proc_pid_smaps(5)).
func TestMemoryIsNotDumpedNorInherited(t *testing.T) {
	v := value(t, canary)
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	at, inside := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(v.Bytes())))), false
	for line := range strings.Lines(string(b)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n == 2 {
			inside = from <= at && at < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			for _, want := range []string{" dd", " wf"} {
				if !strings.Contains(flags, want) {
					t.Errorf("the mapping's flags are%s, without%s", flags, want)
				}
			}
			return
		}
	}
	t.Error("the kernel does not know the mapping")
}

func TestPackAndUnpack(t *testing.T) {
	set := Set{
		{policy.Secret{Handle: "a", As: policy.SecretFile}, value(t, canary)},
		{policy.Secret{Handle: "b", As: policy.SecretEnv}, value(t, "")},
		{policy.Secret{Handle: "c", As: policy.SecretFile}, value(t, "\x00\n\xff")},
	}
	f, err := set.Pack()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("the memfd is not sealed: %v", err)
	}
	got, err := Unpack(f, set.Secrets())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Wipe()
	for i, g := range got {
		if !bytes.Equal(g.Value.Bytes(), set[i].Value.Bytes()) || g.Secret != set[i].Secret {
			t.Errorf("%s is %q", g.Handle, g.Value.Bytes())
		}
	}
	for _, wrong := range [][]policy.Secret{nil, set.Secrets()[:2], append(set.Secrets(), policy.Secret{Handle: "d"})} {
		if _, err := Unpack(f, wrong); err == nil {
			t.Errorf("%d secrets were unpacked", len(wrong))
		}
	}
}

func TestUnpackRefusesWhatIsNotSealed(t *testing.T) {
	for name, content := range map[string]string{"honest": "\x01\x00\x00\x00x", "long": "\xff\xff\xff\xffx", "empty": ""} {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "x")
		defer f.Close()
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		secrets := []policy.Secret{{Handle: "a", As: policy.SecretFile}}
		if _, err := Unpack(f, secrets); err == nil {
			t.Errorf("%s: taken without seals", name)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		set, err := Unpack(f, secrets)
		if (err == nil) != (name == "honest") {
			t.Errorf("%s: %v", name, err)
		}
		set.Wipe()
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00x"), 1)
	f.Add([]byte("\xff\xff\xff\x7f"), 2)
	f.Add([]byte(""), 0)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 0 || n > 70 {
			return
		}
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		m := os.NewFile(uintptr(fd), "x")
		defer m.Close()
		if _, err := m.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(m.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		set, err := Unpack(m, make([]policy.Secret, n))
		if err == nil {
			total := 0
			for _, g := range set {
				total += 4 + len(g.Value.Bytes())
			}
			if total != len(b) || len(set) != n {
				t.Errorf("%d bytes of %d", total, len(b))
			}
		}
		set.Wipe()
	})
}
