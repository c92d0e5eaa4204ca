package testenv

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// gitEnv is a closed configuration: nothing of the machine's or the person's
// takes part, and ids and dates are the same every time.
func gitEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LANG=C.UTF-8",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=A U Thor", "GIT_AUTHOR_EMAIL=author@example.com", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=C O Mitter", "GIT_COMMITTER_EMAIL=committer@example.com", "GIT_COMMITTER_DATE=1700000000 +0000",
		// Not in the way of fixtures that clone each other by path.
		"GIT_ALLOW_PROTOCOL=file",
	}
}

// Git runs git in dir and returns its output without the last newline. A
// failure fails the test.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	return gitInput(t, dir, nil, args...)
}

func gitInput(t testing.TB, dir string, stdin []byte, args ...string) string {
	t.Helper()
	out, err := tryGit(dir, stdin, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func tryGit(dir string, stdin []byte, args ...string) (string, error) {
	// Automatic gc would run behind the test, in a directory it then removes.
	cmd := exec.Command("git", append([]string{"-c", "gc.auto=0", "-c", "maintenance.auto=false"}, args...)...)
	cmd.Dir, cmd.Env = dir, gitEnv()
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}
