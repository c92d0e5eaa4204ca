// Package systemd tests the package and its units: on machines of package host, where an
// operator installs, restarts, upgrades and removes the service under Workers that run,
// and by systemd-analyze(1), which finds nothing wrong with the units and says how much
// each leaves exposed.
package systemd
