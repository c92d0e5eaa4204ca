package ledger

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// The locks are open file description locks (F_OFD_SETLK, fcntl(2), since
// Linux 3.15), not flock(2). Both belong to the open file and end with its last
// descriptor, however the process dies; but only the OFD kind has a query,
// F_OFD_GETLK, that tells whether a lock is held without taking it. A probe
// that took the lock, however briefly, would make a concurrent Open pass over
// a free stream, and a concurrent recovery look busy.

// tryLock takes f's exclusive lock if it is free.
func tryLock(f *os.File) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	err := retry(func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("fcntl", err)
}

// locked reports whether anybody holds f's lock.
func locked(f *os.File) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	err := retry(func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk) })
	return lk.Type != unix.F_UNLCK, os.NewSyscallError("fcntl", err)
}

// RecoverLock makes the caller the only one that recovers this Runtime root,
// until unlock or death. Another holder is CodeLedgerBusy.
func RecoverLock(dir *os.File) (unlock func(), err error) {
	const op = "ledger.recover_lock"
	f, err := openAt(dir, "recover.lock", unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, failed(op, err)
	}
	ok, err := tryLock(f)
	if err != nil {
		f.Close()
		return nil, failed(op, err)
	}
	if !ok {
		f.Close()
		return nil, policy.Errorf(policy.CodeLedgerBusy, op, "another process is recovering this Runtime root")
	}
	return func() { f.Close() }, nil
}
