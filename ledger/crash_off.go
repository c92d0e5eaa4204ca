//go:build !crashtest

package ledger

// crashPoint is where the crash walk of tests/crash ends the process. In a
// program that is not built for it there is nothing here.
func crashPoint() {}
