// Package systemd tests the units in systemd/ as far as that takes no running
// service manager: that systemd-analyze(1) finds nothing wrong with them, how much
// each leaves exposed, and that none takes from Workers what they need.
package systemd
