package testenv

import "golang.org/x/sys/unix"

// Exchanging exchanges two names again and again, as somebody does who wants another to
// be caught between check and use, until stop is called. Either may be gone meanwhile.
func Exchanging(a, b string) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stopped:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() { close(stopped); <-done }
}
