package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

func TestSecretConfiguration(t *testing.T) {
	for text, good := range map[string]bool{
		`file = "/etc/yoi/npm"`:              true,
		`credential = "npm"`:                 true,
		`command = ["/usr/bin/pass", "npm"]`: true,
		"":                                   false,
		`file = "etc/npm"`:                   false,
		`file = "/a"` + "\n" + `credential = "b"`:                                       false,
		`credential = "../npm"`:                                                         false,
		`command = ["pass"]`:                                                            false,
		`command = []`:                                                                  false,
		`file = "/a"` + "\n" + `value = "x"`:                                            false,
		`file = "/a"` + "\n" + `time_limit = "1s"`:                                      false,
		`command = ["/bin/a"]` + "\n" + `time_limit = "1h"`:                             false,
		`command = ["/bin/a"]` + "\n" + `time_limit = "3s"`:                             true,
		`file = "/a"` + "\n" + `as = ["http-header"]`:                                   false,
		`file = "/a"` + "\n" + `as = ["argv"]`:                                          false,
		`file = "/a"` + "\n" + `hosts = ["a.example:443"]`:                              true,
		`file = "/a"` + "\n" + `hosts = ["*"]`:                                          false,
		`file = "/a"` + "\n" + `workspaces = ["web"]`:                                   true,
		`file = "/a"` + "\n" + `workspaces = ["../web"]`:                                false,
		`file = "/a"` + "\n" + `as = ["http-header", "env"]` + "\n" + `hosts = ["a.b"]`: true,
	} {
		_, err := ParseConfig([]byte("[secrets.npm]\n" + text + "\n"))
		if good && err != nil || !good && !errors.Is(err, policy.CodeConfigInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ParseConfig([]byte("[secrets.\"a/b\"]\nfile = \"/a\"\n")); !errors.Is(err, policy.CodeConfigInvalid) {
		t.Errorf("a path as handle: %v", err)
	}
}

func TestSecretUseIsTheOperators(t *testing.T) {
	file := policy.Secret{Handle: "a", As: policy.SecretFile}
	header := policy.Secret{Handle: "a", As: policy.SecretHTTPHeader, Host: "a.example"}
	for name, c := range map[string]struct {
		config    SecretConfig
		secret    policy.Secret
		workspace policy.WorkspaceID
		good      bool
	}{
		"a file":                {SecretConfig{File: "/a"}, file, "default", true},
		"no host":               {SecretConfig{File: "/a"}, header, "default", false},
		"its host":              {SecretConfig{File: "/a", Hosts: []string{"a.example"}}, header, "default", true},
		"another host":          {SecretConfig{File: "/a", Hosts: []string{"b.example"}}, header, "default", false},
		"a file where hosts":    {SecretConfig{File: "/a", Hosts: []string{"a.example"}}, file, "default", false},
		"both where both":       {SecretConfig{File: "/a", As: []policy.SecretDelivery{"file", "http-header"}, Hosts: []string{"a.example"}}, file, "default", true},
		"its workspace":         {SecretConfig{File: "/a", Workspaces: []policy.WorkspaceID{"web"}}, file, "web", true},
		"another's workspace":   {SecretConfig{File: "/a", Workspaces: []policy.WorkspaceID{"web"}}, file, "default", false},
		"a variable where file": {SecretConfig{File: "/a", As: []policy.SecretDelivery{"file"}}, policy.Secret{Handle: "a", As: policy.SecretEnv}, "default", false},
	} {
		err := c.config.allows(c.secret, c.workspace)
		if c.good && err != nil || !c.good && !errors.Is(err, policy.CodeSecretRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretStores(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const value = "canary-4711"
	link := filepath.Join(dir, "link")
	if err := os.Symlink(write("token", value+"\n", 0o640), link); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	t.Setenv("YOI_TEST_VALUE", value)
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	r := &Runtime{
		callerSecrets: map[policy.SecretHandle]CallerSecret{
			"mine": {Env: "YOI_TEST_VALUE"}, "unset": {Env: "YOI_TEST_NOT_SET"}, "my-file": {File: dir + "/open"}, "my-command": {Command: "printf %s " + value},
		},
	}
	r.settings.Store(&settings{config: Config{Secrets: map[policy.SecretHandle]SecretConfig{
		"file": {File: link}, "open": {File: write("open", value, 0o644)}, "gone": {File: dir + "/gone"}, "dir": {File: dir}, "fifo": {File: fifo},
		"credential": {Credential: "token"}, "no-credential": {Credential: "none"},
		"command": {Command: sh("echo " + value)}, "fails": {Command: sh("echo " + value + "; echo " + value + " >&2; exit 3")},
		"empty": {Command: sh(":")}, "no-program": {Command: []string{"/nonexistent/" + value}},
		"slow":      {Command: sh("echo " + value + "; exec sleep 100"), TimeLimit: "100ms"},
		"daemonic":  {Command: sh("echo " + value + "; sleep 100 &"), TimeLimit: "100ms"},
		"huge":      {Command: sh("cat /dev/zero"), TimeLimit: "60s"},
		"two-lines": {File: write("two", value+"\nX-Other: 1\n", 0o600)}, "nul": {File: write("nul", value+"\x00", 0o600)},
	}}})
	for _, c := range []struct {
		handle policy.SecretHandle
		as     policy.SecretDelivery
		want   string
		code   policy.Code
	}{
		{"file", policy.SecretFile, value + "\n", ""},
		{"file", policy.SecretEnv, value, ""},
		{"credential", policy.SecretEnv, value, ""},
		{"command", policy.SecretFile, value + "\n", ""},
		{"mine", policy.SecretFile, value, ""},
		{"my-file", policy.SecretFile, value, ""},
		{"my-command", policy.SecretEnv, value, ""},
		{"two-lines", policy.SecretFile, value + "\nX-Other: 1\n", ""},
		{"two-lines", policy.SecretEnv, value + "\nX-Other: 1", ""},
		{"dropped", policy.SecretEnv, "", policy.CodeSecretUnknown},
		{"nul", policy.SecretEnv, "", policy.CodeSecretInvalid},
		{"open", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"gone", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"dir", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"fifo", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"no-credential", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"fails", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"empty", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"no-program", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"slow", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"daemonic", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"huge", policy.SecretFile, "", policy.CodeSecretInvalid},
		{"unset", policy.SecretFile, "", policy.CodeSecretUnavailable},
		{"nobody", policy.SecretFile, "", policy.CodeSecretUnknown},
	} {
		set, uses, err := r.openSecrets(context.Background(), registry.Allocation{WorkspaceID: "default", SandboxPolicy: policy.SandboxPolicy{
			Secrets: []policy.Secret{{Handle: "mine", As: policy.SecretFile, Name: "first"}, {Handle: c.handle, As: c.as}},
		}})
		if c.code != "" {
			d := policy.AsDiagnostic(err)
			if !errors.Is(err, c.code) {
				t.Errorf("%s: %v, want %s", c.handle, err, c.code)
			} else if strings.Contains(d.Message+d.Hint, value) || strings.Contains(d.Message+d.Hint, dir) || (c.handle != "no-program" && strings.Contains(err.Error(), value)) {
				t.Errorf("%s: the value or a path is in %v", c.handle, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.handle, err)
			continue
		}
		if got := string(set[1].Value.Bytes()); got != c.want || uses[1].Handle != c.handle || uses[1].As != c.as {
			t.Errorf("%s as %s: %q, %+v", c.handle, c.as, got, uses[1])
		}
		set.Wipe()
	}
}

func TestHeaderValues(t *testing.T) {
	s := policy.Secret{Handle: "a", As: policy.SecretHTTPHeader, Host: "a.example"}
	for value, good := range map[string]bool{"tok": true, "tok\n": true, "a\tb": true, "a\r\nX: y": false, "a\nb": false, "a\x00": false, strings.Repeat("a", 9<<10): false} {
		r := &Runtime{callerSecrets: map[policy.SecretHandle]CallerSecret{"a": {File: filepath.Join(t.TempDir(), "v")}}}
		if err := os.WriteFile(r.callerSecrets["a"].File, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		set, _, err := r.openSecrets(t.Context(), registry.Allocation{SandboxPolicy: policy.SandboxPolicy{Secrets: []policy.Secret{s}}})
		if good != (err == nil) {
			t.Errorf("%.20q: %v", value, err)
		}
		set.Wipe()
	}
}
