"""What every room uses: settings, files, errors, margins, processes. It knows nothing about models or runs."""
