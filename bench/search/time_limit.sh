# The limit of time of a script that goes on where it was stopped: SECONDS_LEFT, or none.
# shellcheck shell=bash
end=$((SECONDS + ${SECONDS_LEFT:-1000000000}))

left() {
    echo $((end - SECONDS))
}

# Ends the script when its time is up.
check_time() {
    if (($(left) <= 0)); then
        echo "The time is up: the same command goes on."
        exit 0
    fi
}
