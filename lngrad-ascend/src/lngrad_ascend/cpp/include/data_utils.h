// Files of bytes, as the samples' data_utils.h reads and writes them.
#ifndef LNGRAD_DATA_UTILS_H
#define LNGRAD_DATA_UTILS_H

#include <cstddef>
#include <cstdio>
#include <string>

// Read a whole file into a buffer. False, and a line on stderr, if it can't be read or does not fit.
inline bool ReadFile(const std::string& filePath, size_t& fileSize, void* buffer, size_t bufferSize)
{
    std::FILE* file = std::fopen(filePath.c_str(), "rb");
    if (file == nullptr) {
        std::fprintf(stderr, "ReadFile: %s can't be opened\n", filePath.c_str());
        return false;
    }
    std::fseek(file, 0, SEEK_END);
    long size = std::ftell(file);
    std::rewind(file);
    bool fits = size >= 0 && static_cast<size_t>(size) <= bufferSize;
    bool done = fits && std::fread(buffer, 1, static_cast<size_t>(size), file) == static_cast<size_t>(size);
    std::fclose(file);
    if (!done) {
        std::fprintf(stderr, "ReadFile: %s has %ld bytes, the buffer %zu\n", filePath.c_str(), size, bufferSize);
        return false;
    }
    fileSize = static_cast<size_t>(size);
    return true;
}

// Write a whole file. False, and a line on stderr, if it can't be written.
inline bool WriteFile(const std::string& filePath, const void* buffer, size_t size)
{
    std::FILE* file = std::fopen(filePath.c_str(), "wb");
    bool done = file != nullptr && std::fwrite(buffer, 1, size, file) == size;
    if (file != nullptr) {
        done = std::fclose(file) == 0 && done;
    }
    if (!done) {
        std::fprintf(stderr, "WriteFile: %s can't be written\n", filePath.c_str());
    }
    return done;
}

#endif
