package helper

import (
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDying(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if dying(pid) {
		t.Error("a process that sleeps is taken for dying")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !dying(pid) { // whether it has noticed or not
		t.Error("a process that was killed is not taken for dying")
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if !dying(pid) {
		t.Error("a zombie is not taken for dying")
	}
	_ = cmd.Wait() // killed
	if !dying(pid) {
		t.Error("what is gone is not taken for dying")
	}
}
