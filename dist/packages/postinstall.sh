#!/bin/sh
# Makes the user of premix-blast.service, and shows systemd the units. A system without
# systemd needs neither.
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers premix.conf || true
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
exit 0
